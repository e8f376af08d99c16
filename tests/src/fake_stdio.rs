//! A scriptable MCP server over standard streams; the program is `fake-stdio`.
//!
//! It is one blocking loop without a runtime, so that it starts fast and does exactly what its
//! script says.

use std::io::{BufRead as _, Write as _};
use std::path::Path;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::daemon::programs;
use crate::fake::{LEGACY, MODERN, tool};
use crate::json::{lenient, raw_member};
use crate::v1::ServerSpec;

/// A way to misbehave.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StdioFault {
    /// Ends at once with this exit code.
    ExitAtOnce(i32),
    /// Waits this many milliseconds before it reads anything.
    SlowStart(u64),
    /// Writes these lines to standard output before every answer.
    Garbage(Vec<String>),
    /// Does not answer `server/discover`.
    SwallowDiscover,
    /// Ends on `server/discover`.
    ExitOnDiscover,
    /// Answers `server/discover` with this error code.
    RefuseDiscover(i64),
    /// Writes this many kilobytes to standard error before it reads anything.
    StderrFlood(usize),
    /// Ends with code 3 if this file exists, else makes it and removes it at the end.
    LockFile(String),
    /// Answers a call after it was cancelled.
    AnswerCancelled,
    /// Ends in the middle of every call.
    CrashOnCall,
    /// Appends its process id to this file.
    Register(String),
    /// Appends every line that it reads to this file.
    Record(String),
    /// Starts another process, which does nothing for a very long time.
    Helper(Helper),
    /// Starts a process that ignores SIGTERM, has an empty environment and replaces itself by a new one all the time.
    Restless,
    /// Ignores SIGTERM and the end of its input.
    Stubborn,
    /// Ignores the end of its input. SIGTERM ends it, and it notes that in this file.
    IgnoresEnd(String),
    /// When its input ends, works for this many milliseconds and then makes this file.
    SlowEnd(u64, String),
    /// Closes its standard output once it has answered a call, and stays.
    CloseOutput,
    /// Does not read anything.
    Deaf,
    /// Writes this line to standard error before it reads anything.
    Say(String),
    /// Offers this many tools more, with schemas of about this many bytes.
    ManyTools(usize, usize),
    /// Answers calls in this form.
    Answer(Form),
    /// Every call writes this many log messages, then adds a tool and says that the tools have changed.
    ChatterOnCall(usize),
}

/// A process that a server starts.
#[expect(
    clippy::struct_excessive_bools,
    reason = "four habits, each of which may be added to any other"
)]
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Helper {
    /// Leaves the server's session and is nobody's child: two forks with `setsid` in between.
    pub detached: bool,
    /// Ignores SIGTERM.
    pub stubborn: bool,
    /// Has an empty environment.
    pub hidden: bool,
    /// Holds the server's standard streams open.
    pub holds_streams: bool,
    /// Where it appends its process id.
    pub pids: String,
}

/// How a call is answered on the wire.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Form {
    /// These bytes first, then the answer.
    After(Vec<u8>),
    /// One byte per write.
    ByteByByte,
    /// Ended by CR and LF.
    Crlf,
    /// Behind a byte order mark.
    Bom,
    /// With a byte that is not UTF-8 in a string of the result.
    BadUtf8,
    /// As the only element of an array.
    Batch,
    /// Without a line end, at the end of the stream.
    LastWords,
    /// So many megabytes of an answer that never ends; the next call is answered well.
    Endless(usize),
    /// With a text of so many bytes.
    Big(usize),
}

/// What the server does.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Script {
    /// Speaks the modern era in place of the legacy one.
    pub modern: bool,
    /// What is wrong with it.
    pub faults: Vec<StdioFault>,
}

impl Script {
    /// A healthy server of an era.
    pub fn healthy(modern: bool) -> Self {
        Self {
            modern,
            faults: Vec::new(),
        }
    }

    /// A legacy server with one fault.
    pub fn faulty(fault: StdioFault) -> Self {
        Self {
            modern: false,
            faults: vec![fault],
        }
    }

    /// Writes the script into `dir` and returns the settings that run it.
    pub async fn spec(&self, name: &str, dir: &Path) -> ServerSpec {
        let file = dir.join(format!("{name}.json"));
        std::fs::write(&file, serde_json::to_string(self).unwrap()).expect("write the script");
        let program = programs().await.join("fake-stdio");
        let line = [program.to_str().unwrap(), file.to_str().unwrap()];
        let habit = self.faults.iter().find_map(|fault| match fault {
            StdioFault::Stubborn => Some(STUBBORN.to_owned()),
            StdioFault::IgnoresEnd(file) => Some(format!(
                "trap 'echo asked to end >> {file}; exit' TERM; \"$0\" \"$@\"; while :; do sleep 0.1; done"
            )),
            _ => None,
        });
        let Some(habit) = habit else {
            return crate::clients::stdio_spec(name, line[0], &[line[1].to_owned()]);
        };
        let args = ["-c", &habit].into_iter().chain(line);
        crate::clients::stdio_spec(name, "sh", &args.map(str::to_owned).collect::<Vec<_>>())
    }
}

/// A signal that is ignored stays so in the next program.
const STUBBORN: &str = "trap '' TERM; exec \"$0\" \"$@\"";
/// First arguments of the program where it is no server.
const DETACH: &str = "--detach";
const LINGER: &str = "--linger";
const RESTLESS: &str = "--restless";
/// Longer than any test.
const FOR_EVER: Duration = Duration::from_hours(1);

struct Server {
    over: bool,
    script: Script,
    out: std::io::Stdout,
    input: std::io::Lines<std::io::StdinLock<'static>>,
    added_tools: usize,
}

/// Runs the script that the first argument names, until standard input ends.
pub fn main() {
    let mut args = std::env::args().skip(1);
    let path = args.next().expect("usage: fake-stdio SCRIPT");
    if path == LINGER {
        append(&args.next().unwrap(), &std::process::id().to_string());
        return std::thread::sleep(FOR_EVER);
    }
    if path == DETACH {
        rustix::process::setsid().expect("a session of its own");
        let helper: Helper = serde_json::from_str(&args.next().unwrap()).unwrap();
        return helper.linger(true);
    }
    if path == RESTLESS {
        rustix::process::setsid().expect("a session of its own");
        return restless();
    }
    let script = std::fs::read_to_string(path).expect("read the script");
    let script: Script = serde_json::from_str(&script).expect("a valid script");
    let mut lock = None;
    for fault in &script.faults {
        match fault {
            StdioFault::ExitAtOnce(code) => std::process::exit(*code),
            StdioFault::SlowStart(millis) => std::thread::sleep(Duration::from_millis(*millis)),
            StdioFault::StderrFlood(kilobytes) => {
                let mut stderr = std::io::stderr().lock();
                let line = format!("{}\n", "x".repeat(1023));
                for _ in 0..*kilobytes {
                    stderr.write_all(line.as_bytes()).unwrap();
                }
                stderr.write_all(b"the flood is over\n").unwrap();
            }
            StdioFault::LockFile(file) => {
                let made = std::fs::File::options()
                    .write(true)
                    .create_new(true)
                    .open(file);
                if made.is_err() {
                    std::process::exit(3);
                }
                lock = Some(file.clone());
            }
            StdioFault::Helper(helper) => helper.start(),
            StdioFault::Restless => restless(),
            StdioFault::Say(line) => append("/dev/stderr", line),
            StdioFault::Deaf => std::thread::sleep(FOR_EVER),
            StdioFault::Register(file) => {
                append(file, &std::process::id().to_string());
            }
            _ => {}
        }
    }
    let end = script.faults.clone();
    let server = Server {
        over: false,
        script,
        out: std::io::stdout(),
        input: std::io::stdin().lock().lines(),
        added_tools: 0,
    };
    server.run();
    for fault in end {
        match fault {
            StdioFault::Stubborn => std::thread::sleep(FOR_EVER),
            StdioFault::SlowEnd(millis, file) => {
                std::thread::sleep(Duration::from_millis(millis));
                append(&file, "complete");
            }
            _ => {}
        }
    }
    if let Some(file) = lock {
        std::fs::remove_file(file).expect("remove the lock file");
    }
}

impl Helper {
    fn start(&self) {
        if !self.detached {
            return self.linger(self.holds_streams);
        }
        let program = std::env::current_exe().unwrap();
        let mut command = std::process::Command::new(program);
        command.args([DETACH, &serde_json::to_string(self).unwrap()]);
        let mut between = streams(&mut command, self.holds_streams).spawn().unwrap();
        between.wait().unwrap();
    }

    #[expect(
        clippy::zombie_processes,
        reason = "a server that takes care of its children would be no test"
    )]
    /// Starts a process that lingers, and waits until it has appended its id to a file.
    fn linger(&self, holds_streams: bool) {
        let program = std::env::current_exe().unwrap();
        let mut command = std::process::Command::new("sh");
        let prefix = if self.stubborn {
            STUBBORN
        } else {
            "exec \"$0\" \"$@\""
        };
        command
            .args(["-c", prefix])
            .arg(program)
            .args([LINGER, &self.pids]);
        if self.hidden {
            command.env_clear();
        }
        let child = streams(&mut command, holds_streams).spawn().unwrap();
        // The shell becomes the program, which keeps its id.
        let id = child.id().to_string();
        while !std::fs::read_to_string(&self.pids)
            .unwrap_or_default()
            .lines()
            .any(|line| line == id)
        {
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

#[expect(
    clippy::zombie_processes,
    reason = "whoever starts it has ended or cares for nothing"
)]
fn restless() {
    let program = std::env::current_exe().unwrap();
    let mut command = std::process::Command::new("sh");
    command.args(["-c", STUBBORN]).arg(program).arg(RESTLESS);
    streams(&mut command, false).env_clear().spawn().unwrap();
}

fn streams(command: &mut std::process::Command, held: bool) -> &mut std::process::Command {
    use std::process::Stdio;
    if held {
        return command;
    }
    command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
}

fn big_tool(number: usize, bytes: usize) -> Value {
    let mut tool = tool(&format!("tool-{number}"));
    tool["inputSchema"] = json!({
        "type": "object",
        "properties": {"text": {"type": "string", "description": "d".repeat(bytes)}},
    });
    tool
}

fn append(file: &str, line: &str) {
    let mut options = std::fs::File::options();
    let file = options.create(true).append(true).open(file);
    writeln!(file.expect("open the file"), "{line}").expect("write the line");
}

impl Server {
    fn run(mut self) {
        while !self.over
            && let Some(Ok(line)) = self.input.next()
        {
            self.receive(&line);
        }
    }

    fn receive(&mut self, line: &str) {
        for fault in &self.script.faults {
            if let StdioFault::Record(file) = fault {
                append(file, line);
            }
        }
        let message = lenient(line);
        let late = &message["params"]["requestId"];
        if !late.is_null() && self.has(&StdioFault::AnswerCancelled) {
            let content = json!([{"type": "text", "text": "too late"}]);
            let answer = json!({"jsonrpc": "2.0", "id": late, "result": {"content": content}});
            self.send(&answer);
        }
        if message["method"].is_string() && !message["id"].is_null() {
            self.answer(&message, line);
        }
    }

    fn has(&self, fault: &StdioFault) -> bool {
        self.script.faults.contains(fault)
    }

    fn send(&mut self, message: &Value) {
        for fault in self.script.faults.clone() {
            if let StdioFault::Garbage(lines) = fault {
                for line in lines {
                    writeln!(self.out, "{line}").unwrap();
                }
            }
        }
        // The reader may be gone, which ends the loop soon enough.
        let _gone = writeln!(self.out, "{message}").and_then(|()| self.out.flush());
    }

    fn answer(&mut self, message: &Value, line: &str) {
        let method = message["method"].as_str().unwrap_or_default();
        if method == "server/discover" && self.has(&StdioFault::SwallowDiscover) {
            return;
        }
        if method == "server/discover" && self.has(&StdioFault::ExitOnDiscover) {
            self.over = true;
            return;
        }
        let outcome = match method {
            "tools/call" if self.has(&StdioFault::CrashOnCall) => std::process::exit(9),
            "tools/call" => self.call(message, line),
            _ => Some(self.plain(method)),
        };
        let mut answer = json!({"jsonrpc": "2.0", "id": message["id"]});
        match outcome {
            Some(Ok(mut result)) => {
                if self.script.modern && result["resultType"].is_null() {
                    result["resultType"] = json!("complete");
                }
                answer["result"] = result;
            }
            Some(Err(code)) => answer["error"] = json!({"code": code, "message": "refused"}),
            None => return,
        }
        let form = self.script.faults.iter().find_map(|fault| match fault {
            StdioFault::Answer(form) if method == "tools/call" => Some(form.clone()),
            _ => None,
        });
        match form {
            Some(form) => self.send_as(answer, form),
            None => self.send(&answer),
        }
        if method == "tools/call" && self.has(&StdioFault::CloseOutput) {
            // The same process, without the pipe.
            use std::os::unix::process::CommandExt as _;
            let program = std::env::current_exe().unwrap();
            let mut next = std::process::Command::new(program);
            next.args([LINGER, "/dev/null"]);
            panic!("{}", next.stdout(std::process::Stdio::null()).exec());
        }
    }

    fn send_as(&mut self, mut answer: Value, form: Form) {
        let mut line = format!("{answer}\n").into_bytes();
        match form {
            Form::After(mut first) => {
                first.append(&mut line);
                line = first;
            }
            Form::ByteByByte => {
                for byte in line {
                    self.out.write_all(&[byte]).unwrap();
                    self.out.flush().unwrap();
                }
                return;
            }
            Form::Crlf => line.insert(line.len() - 1, b'\r'),
            Form::Bom => line = [b"\xef\xbb\xbf", line.as_slice()].concat(),
            Form::BadUtf8 => {
                answer["result"]["content"][0]["text"] = json!("-here-");
                let text = format!("{answer}\n");
                let (head, tail) = text.split_once("-here-").unwrap();
                line = [head.as_bytes(), b"\xff", tail.as_bytes()].concat();
            }
            Form::Batch => line = format!("[{answer}]\n").into_bytes(),
            Form::LastWords => {
                line.pop();
            }
            Form::Endless(megabytes) => {
                line = Vec::new();
                let head = format!("{{\"id\":{},\"result\":\"", answer["id"]);
                self.out.write_all(head.as_bytes()).unwrap();
                let chunk = vec![b'x'; 1 << 20];
                for _ in 0..megabytes {
                    self.out.write_all(&chunk).unwrap();
                }
                self.out.write_all(b"\n").unwrap();
                self.script
                    .faults
                    .retain(|fault| !matches!(fault, StdioFault::Answer(_)));
            }
            Form::Big(bytes) => {
                answer["result"]["content"][0]["text"] = json!("x".repeat(bytes));
                line = format!("{answer}\n").into_bytes();
            }
        }
        self.out
            .write_all(&line)
            .and_then(|()| self.out.flush())
            .unwrap();
        if self.has(&StdioFault::Answer(Form::LastWords)) {
            std::process::exit(0);
        }
    }

    fn plain(&self, method: &str) -> Result<Value, i64> {
        let info = json!({"name": "fake-stdio", "version": "1.0"});
        let capabilities = json!({"tools": {}});
        let modern = self.script.modern;
        let refusal = self.script.faults.iter().find_map(|fault| match fault {
            StdioFault::RefuseDiscover(code) => Some(*code),
            _ => None,
        });
        match method {
            "server/discover" if modern => Ok(json!({
                "supportedVersions": [MODERN], "capabilities": capabilities,
                "_meta": {"io.modelcontextprotocol/serverInfo": info},
                "ttlMs": 0, "cacheScope": "private",
            })),
            "server/discover" => Err(refusal.unwrap_or(-32601)),
            "initialize" if !modern => Ok(json!({
                "protocolVersion": LEGACY, "capabilities": capabilities, "serverInfo": info,
            })),
            "ping" if !modern => Ok(json!({})),
            "tools/list" => {
                let mut tools = Vec::from(["echo", "ask", "hang"].map(tool));
                tools.extend((0..self.added_tools).map(|number| tool(&format!("added-{number}"))));
                for fault in &self.script.faults {
                    if let StdioFault::ManyTools(count, bytes) = fault {
                        tools.extend((0..*count).map(|n| big_tool(n, *bytes)));
                    }
                }
                Ok(json!({"tools": tools, "ttlMs": 0, "cacheScope": "private"}))
            }
            _ => Err(-32601),
        }
    }

    /// `None` where no answer is given.
    fn call(&mut self, message: &Value, line: &str) -> Option<Result<Value, i64>> {
        let params = &message["params"];
        self.chatter();
        let text = match params["name"].as_str().unwrap_or_default() {
            "echo" => raw_member(line, &["params", "arguments"]).unwrap_or_default(),
            "hang" => return None,
            "ask" => match self.ask(params) {
                Ok(answer) => answer.to_string(),
                Err(question) => return Some(Ok(question)),
            },
            _ => return Some(Err(-32602)),
        };
        Some(Ok(json!({"content": [{"type": "text", "text": text}]})))
    }

    fn chatter(&mut self) {
        for fault in self.script.faults.clone() {
            if let StdioFault::ChatterOnCall(count) = fault {
                let params = json!({"level": "info", "data": "chatter"});
                let log =
                    json!({"jsonrpc": "2.0", "method": "notifications/message", "params": params});
                let changed =
                    json!({"jsonrpc": "2.0", "method": "notifications/tools/list_changed"});
                self.added_tools += 1;
                let burst = format!("{log}\n").repeat(count) + &format!("{changed}\n");
                // At once, as a program does whose output is buffered.
                let _gone = self.out.write_all(burst.as_bytes());
            }
        }
    }

    /// Asks the user's name: pushed in the legacy era, as a result of its own in the modern one.
    fn ask(&mut self, params: &Value) -> Result<Value, Value> {
        let schema = json!({
            "type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"],
        });
        let question =
            json!({"mode": "form", "message": "Who are you?", "requestedSchema": schema});
        if self.script.modern {
            let given = params["inputResponses"]["who"].clone();
            let ask = json!({"method": "elicitation/create", "params": question});
            return if given.is_null() {
                Err(json!({"resultType": "input_required", "inputRequests": {"who": ask}}))
            } else {
                Ok(given)
            };
        }
        let id = json!("question-1");
        let method = "elicitation/create";
        self.send(&json!({"jsonrpc": "2.0", "id": id, "method": method, "params": question}));
        while let Some(Ok(line)) = self.input.next() {
            let message: Value = serde_json::from_str(&line).unwrap_or_default();
            if message["id"] == id && message["method"].is_null() {
                return Ok(message["result"].clone());
            }
            self.receive(&line);
        }
        Ok(Value::Null)
    }
}
