//! Asks at the terminal, a line at a time.
//!
//! Lines and nothing else: the terminal keeps its own editing and its Ctrl-C, nothing has to be put right when the program
//! ends, and a question can be given up at any moment because another app has answered it. A prompt that takes single keys
//! holds the terminal until somebody presses one.

use std::cell::RefCell;
use std::io::{self, BufRead as _, Write as _};

use tokio::sync::mpsc;

use crate::exit::{Failure, Outcome};

/// Lines that were typed and not yet asked for.
const TYPED_AHEAD: usize = 16;

/// The lines of standard input.
pub(crate) struct Keyboard {
    lines: RefCell<Option<mpsc::Receiver<io::Result<String>>>>,
}

impl Keyboard {
    pub(crate) fn new() -> Self {
        Self {
            lines: RefCell::new(None),
        }
    }

    /// Forgets what was typed before anybody asked.
    pub(crate) fn forget(&self) {
        if let Some(lines) = &mut *self.lines.borrow_mut() {
            while lines.try_recv().is_ok() {}
        }
    }

    /// Asks on standard error and waits for a line; `None` at the end of the input. The prompt is harmless already.
    pub(crate) async fn ask(&self, prompt: &str) -> Outcome<Option<String>> {
        let mut stderr = anstream::stderr();
        let _nobody = write!(stderr, "{prompt}").and_then(|()| stderr.flush());
        self.line().await
    }

    /// Waits for a line.
    pub(crate) async fn line(&self) -> Outcome<Option<String>> {
        let taken = self.lines.borrow_mut().take();
        let mut guard = Returned {
            keyboard: self,
            lines: Some(taken.unwrap_or_else(read_lines)),
        };
        let line = match &mut guard.lines {
            Some(lines) => lines.recv().await,
            None => None,
        };
        match line {
            None => Ok(None),
            Some(Ok(line)) => Ok(Some(line)),
            Some(Err(error)) => Err(Failure::Usage(format!("standard input: {error}"))),
        }
    }
}

/// Gives the lines back, also when whoever asked is dropped.
struct Returned<'a> {
    keyboard: &'a Keyboard,
    lines: Option<mpsc::Receiver<io::Result<String>>>,
}

impl Drop for Returned<'_> {
    fn drop(&mut self) {
        *self.keyboard.lines.borrow_mut() = self.lines.take();
    }
}

/// A read from a terminal cannot be given up, so a thread does it; the end of the program does not wait for it.
fn read_lines() -> mpsc::Receiver<io::Result<String>> {
    let (sender, lines) = mpsc::channel(TYPED_AHEAD);
    std::thread::spawn(move || {
        for line in io::stdin().lock().lines() {
            let failed = line.is_err();
            if sender.blocking_send(line).is_err() || failed {
                break;
            }
        }
    });
    lines
}
