// A person with a real browser: node browse.mjs PROGRAM sign-in URL SCREENSHOT
//                               node browse.mjs PROGRAM opened URL SCREENSHOT
// `sign-in` goes through the pages of an authorization server: fills in whatever asks for a name and a password, agrees to
// what is asked, and stops where there is nothing left to do. `opened` lets an application's page open URL in a window, as
// applications in browsers do, and waits for what that window tells it. Prints what was seen, as JSON.
import puppeteer from 'puppeteer-core';

const [program, what, url, screenshot] = process.argv.slice(2);
const browser = await puppeteer.launch({
  executablePath: program,
  headless: 'shell',
  args: ['--no-sandbox', '--disable-setuid-sandbox', '--no-zygote', '--single-process', '--disable-gpu'],
  defaultViewport: { width: 800, height: 600 },
});
const seen = { pages: [], errors: [], requests: [] };
const watch = page => {
  page.on('pageerror', error => seen.errors.push(String(error)));
  // A page that cannot be had is none of the page's own errors.
  page.on('console', message => {
    if (message.type() === 'error' && !message.text().startsWith('Failed to load resource')) seen.errors.push(message.text());
  });
  page.on('request', request => seen.requests.push(request.url().split('?')[0]));
};
const looked = async page => {
  seen.url = page.url();
  seen.title = await page.title();
  seen.text = await page.evaluate(() => document.body.innerText);
  seen.pages.push(seen.title);
};

if (what === 'sign-in') {
  const page = await browser.newPage();
  watch(page);
  await page.goto(url, { waitUntil: 'load' });
  for (let step = 0; step < 10; step++) {
    await looked(page);
    const name = await page.$('input[name=login]');
    const password = await page.$('input[name=password]');
    if (name) await name.type('ann');
    if (password) await password.type('a password');
    const button = await page.$('form button[type=submit]');
    if (!button) break;
    await Promise.all([page.waitForNavigation({ waitUntil: 'load' }), button.click()]);
  }
  await page.screenshot({ path: screenshot });
} else {
  const opener = await browser.newPage();
  watch(opener);
  await opener.setContent('<h1>An application</h1>');
  const appears = new Promise(done => browser.once('targetcreated', async target => done(await target.page())));
  await opener.evaluate(url => {
    window.told = new Promise(done => window.addEventListener('message', event => done(event.data)));
    window.popup = window.open(url, 'sign-in', 'width=500,height=600');
  }, url);
  const popup = await appears;
  watch(popup);
  await popup.waitForSelector('main');
  await looked(popup);
  await popup.screenshot({ path: screenshot });
  seen.told = await opener.evaluate(() => window.told);
  await opener.waitForFunction(() => window.popup.closed, { timeout: 10000 });
  seen.closed = true;
}
await browser.close();
console.log(JSON.stringify(seen));
