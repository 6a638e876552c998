"""Mistakes in S2's encryption of records at rest."""

from __future__ import annotations

from tests.mutants.mutant import Fault, Mutant

FILE = "transports/http/s2/encryption.py"
ROWS = "tests/conformance/test_s2x_rows.py::"

ENCRYPTION_MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        "a stored record opens in another stream",
        Fault.SEALED,
        FILE,
        'self._identity = b"%b%b%b" % (_CONTEXT, found.incarnation.to_bytes(16, "big"), cell)',
        "self._identity = _CONTEXT",
        ROWS + "test_s2x_09_stored_records_are_sealed_for_their_stream",
    ),
    Mutant(
        "two records have one nonce",
        Fault.SEALED,
        FILE,
        "nonce = self._entropy(self._aead.nonce_bytes)",
        "nonce = bytes(self._aead.nonce_bytes)",
        ROWS + "test_s2x_09_stored_records_are_sealed_for_their_stream",
    ),
    Mutant(
        "headers of encrypted records are stored in clear",
        Fault.SEALED,
        FILE,
        "    return pairs if _is_command(pairs) else []\n",
        "    return pairs\n",
        ROWS + "test_s2x_02_the_key_comes_with_each_append_and_read",
    ),
    Mutant(
        "fences and trims are encrypted, and do not work",
        Fault.SEALED,
        FILE,
        "            body if _is_command(pairs) else self.encrypt(pairs, body)\n",
        "            self.encrypt(pairs, body)\n",
        ROWS + "test_s2x_08_commands_are_stored_in_clear_and_sizes_are_those_in_clear",
    ),
    Mutant(
        "random nonces of AES-256-GCM are used without a limit",
        Fault.SEALED,
        FILE,
        "self._tail > GCM_RECORDS_MAX",
        "self._tail < 0",
        ROWS + "test_s2x_09_a_stream_of_aes_256_gcm_is_full_at_2_32_records",
    ),
    Mutant(
        "a damaged record is shown as one of another key",
        Fault.SEALED,
        FILE,
        "        if len(body) <= overhead or body[0] != self._form:\n",
        "        if len(body) <= overhead:\n",
        ROWS + "test_s2x_11_damaged_forms_are_the_store_s_fault",
    ),
)
