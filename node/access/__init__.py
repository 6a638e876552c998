"""Access control: the access file, tokens, default rules, and the policy that combines them."""
