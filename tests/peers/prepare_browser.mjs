// Unpacks the browser below TMPDIR and prints its path.
import chromium from '@sparticuz/chromium';
console.log(await chromium.executablePath());
