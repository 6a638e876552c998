// The camera of the device, to read a QR code: where the browser can do that by itself.

const LOOK_MS = 150;
const SCAN_MS = 120_000;

export async function canScan() {
  if (!("BarcodeDetector" in window) || !navigator.mediaDevices?.getUserMedia) return false;
  return (await BarcodeDetector.getSupportedFormats()).includes("qr_code");
}

/** The text of the first QR code that the camera sees; null: `signal` was aborted, or nothing was seen for two minutes. */
export async function scan(video, signal) {
  const stream = await navigator.mediaDevices.getUserMedia({ video: { facingMode: "environment" } });
  try {
    video.srcObject = stream;
    await video.play();
    const detector = new BarcodeDetector({ formats: ["qr_code"] });
    const until = Date.now() + SCAN_MS;
    while (!signal.aborted && video.isConnected && Date.now() < until) {
      const [found] = await detector.detect(video);
      if (found) return found.rawValue;
      await new Promise((resolve) => setTimeout(resolve, LOOK_MS));
    }
    return null;
  } finally {
    for (const track of stream.getTracks()) track.stop();
    video.srcObject = null;
  }
}
