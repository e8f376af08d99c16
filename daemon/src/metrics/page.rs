//! The figures as text, in the exposition format of Prometheus 0.0.4.

use std::collections::HashSet;
use std::fmt;
use std::sync::Arc;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{
    DescriptorEncoder, EncodeCounterValue, EncodeGaugeValue, EncodeMetric, prometheus_text,
};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::{Registry, Unit};

use super::process::Process;
use super::{Figures, Inner, Metrics};

/// States of servers, so that a state in which none is shows as 0.
const STATES: [&str; 7] = [
    "connecting",
    "authenticating",
    "connected",
    "discovering",
    "ready",
    "failed",
    "disconnected",
];

impl Metrics {
    /// The page, and its type. Series of servers that are not registered any more end here.
    ///
    /// # Errors
    /// Never, since memory is written to.
    pub(super) fn page(&self, figures: Figures) -> Result<(String, &'static str), fmt::Error> {
        let mut text = String::new();
        if let Some(inner) = &self.0 {
            let mut registry = Registry::default();
            registry.register_collector(Box::new(Page {
                inner: Arc::clone(inner),
                figures,
            }));
            prometheus_text::encode(&mut text, &registry)?;
        }
        Ok((text, prometheus_text::CONTENT_TYPE))
    }
}

#[derive(Debug)]
struct Page {
    inner: Arc<Inner>,
    figures: Figures,
}

/// One metric without labels.
fn gauge<N>(encoder: &mut DescriptorEncoder<'_>, name: &str, help: &str, value: N) -> fmt::Result
where
    N: EncodeGaugeValue,
{
    let metric = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
    ConstGauge::new(value).encode(metric)
}

/// One counter without labels.
fn counter<N>(encoder: &mut DescriptorEncoder<'_>, name: &str, help: &str, value: N) -> fmt::Result
where
    N: EncodeCounterValue,
{
    let metric = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
    ConstCounter::new(value).encode(metric)
}

impl Collector for Page {
    fn encode(&self, mut encoder: DescriptorEncoder) -> fmt::Result {
        Self::build(&mut encoder)?;
        self.servers(&mut encoder)?;
        self.calls(&mut encoder)?;
        self.questions(&mut encoder)?;
        self.rpcs(&mut encoder)?;
        self.updates(&mut encoder)?;
        self.process(&mut encoder)
    }
}

impl Page {
    fn build(encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let mut family = encoder.encode_descriptor(
            "mcp_sidecar_build_info",
            "The version of the daemon; always 1",
            None,
            MetricType::Gauge,
        )?;
        let one = ConstGauge::new(1_u64);
        one.encode(family.encode_family(&[("version", env!("CARGO_PKG_VERSION"))])?)
    }

    fn servers(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let figures = &self.figures;
        let mut family = encoder.encode_descriptor(
            "mcp_sidecar_servers",
            "Registered servers by the state of their connection",
            None,
            MetricType::Gauge,
        )?;
        for state in STATES {
            let all = figures.servers.iter();
            let count = all.filter(|(_, of, _)| *of == state).count();
            ConstGauge::new(count).encode(family.encode_family(&[("state", state)])?)?;
        }
        gauge(
            encoder,
            "mcp_sidecar_links",
            "Links to servers, those of single apps among them",
            figures.links,
        )?;
        let (dials, failed) = figures.dials;
        counter(
            encoder,
            "mcp_sidecar_connection_attempts",
            "Attempts to connect to servers",
            dials,
        )?;
        counter(
            encoder,
            "mcp_sidecar_connection_failures",
            "Attempts to connect to servers that failed",
            failed,
        )?;
        counter(
            encoder,
            "mcp_sidecar_list_refreshes",
            "Readings of the lists of servers that were begun",
            figures.refreshes,
        )
    }

    fn calls(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let figures = &self.figures;
        let mut counts = self.inner.counts();
        let registered: HashSet<_> = figures.servers.iter().map(|(key, _, _)| key).collect();
        counts.calls.retain(|key, _| registered.contains(key));
        let labels = |key: &crate::base::ServerKey| {
            [
                ("namespace", key.namespace.to_string()),
                ("server", key.id.to_string()),
            ]
        };
        let mut family = encoder.encode_descriptor(
            "mcp_sidecar_calls",
            "Calls that have ended, by server and outcome: ok, tool_error, or a reason code",
            None,
            MetricType::Counter,
        )?;
        for (key, calls) in &counts.calls {
            for (outcome, count) in &calls.ended {
                let [namespace, server] = labels(key);
                let outcome = ("outcome", (*outcome).to_owned());
                let labels = [namespace, server, outcome];
                ConstCounter::new(*count).encode(family.encode_family(&labels)?)?;
            }
        }
        let mut family = encoder.encode_descriptor(
            "mcp_sidecar_call_duration",
            "From the beginning of a call to its end, with every question and every wait",
            Some(&Unit::Seconds),
            MetricType::Histogram,
        )?;
        for (key, calls) in &counts.calls {
            calls.took.encode(family.encode_family(&labels(key))?)?;
        }
        drop(counts);
        let mut family = encoder.encode_descriptor(
            "mcp_sidecar_server_calls_in_flight",
            "Calls that a server works on, over its own link",
            None,
            MetricType::Gauge,
        )?;
        for (key, _, in_flight) in &figures.servers {
            ConstGauge::new(*in_flight).encode(family.encode_family(&labels(key))?)?;
        }
        gauge(
            encoder,
            "mcp_sidecar_calls_in_flight",
            "Calls that are made at servers",
            figures.calls_in_flight,
        )
    }

    fn questions(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        gauge(
            encoder,
            "mcp_sidecar_questions_pending",
            "Questions, requests for a model and approvals that wait for an answer",
            self.figures.questions_pending,
        )?;
        let mut family = encoder.encode_descriptor(
            "mcp_sidecar_questions",
            "Questions that have ended, by how they were put and how they ended",
            None,
            MetricType::Counter,
        )?;
        for ((mode, end), count) in &self.inner.counts().questions {
            let labels = [("mode", *mode), ("end", *end)];
            ConstCounter::new(*count).encode(family.encode_family(&labels)?)?;
        }
        Ok(())
    }

    fn rpcs(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        gauge(
            encoder,
            "mcp_sidecar_rpcs_in_flight",
            "RPCs of apps that are under way, streams among them",
            self.figures.rpcs_in_flight,
        )?;
        let counts = self.inner.counts();
        let mut family = encoder.encode_descriptor(
            "mcp_sidecar_rpcs",
            "RPCs that have ended, by method and gRPC code",
            None,
            MetricType::Counter,
        )?;
        for (method, rpcs) in &counts.rpcs {
            for (code, count) in &rpcs.ended {
                let labels = [("method", method.as_str()), ("code", *code)];
                ConstCounter::new(*count).encode(family.encode_family(&labels)?)?;
            }
        }
        let mut family = encoder.encode_descriptor(
            "mcp_sidecar_rpc_duration",
            "From the headers of an RPC to its status",
            Some(&Unit::Seconds),
            MetricType::Histogram,
        )?;
        for (method, rpcs) in &counts.rpcs {
            let labels = [("method", method.as_str())];
            rpcs.took.encode(family.encode_family(&labels)?)?;
        }
        Ok(())
    }

    fn updates(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let (revision, kept) = self.figures.updates;
        gauge(
            encoder,
            "mcp_sidecar_update_log_revision",
            "The last change of the update log",
            revision,
        )?;
        gauge(
            encoder,
            "mcp_sidecar_update_log_entries",
            "Changes that are kept for resumption",
            kept,
        )?;
        gauge(
            encoder,
            "mcp_sidecar_subscribers",
            "Open update streams, and streams that follow a resource",
            self.figures.subscribers,
        )
    }

    /// Under the names that every Prometheus client has for them.
    fn process(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let process = Process::now();
        for (name, help, value) in [
            (
                "process_resident_memory_bytes",
                "Resident memory",
                process.resident_bytes,
            ),
            (
                "process_open_fds",
                "Open file descriptors",
                process.open_fds,
            ),
            (
                "process_max_fds",
                "Most file descriptors that may be open",
                process.max_fds,
            ),
            ("process_threads", "Threads", process.threads),
        ] {
            if let Some(value) = value {
                gauge(encoder, name, help, value)?;
            }
        }
        if let Some(seconds) = process.cpu_seconds {
            let help = "Time on a processor, in user and in kernel mode";
            counter(encoder, "process_cpu_seconds", help, seconds)?;
        }
        let started = std::time::Duration::from_millis(
            u64::try_from(self.inner.started.0).unwrap_or_default(),
        );
        gauge(
            encoder,
            "process_start_time_seconds",
            "When the daemon started, since the epoch",
            started.as_secs_f64(),
        )
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::time::Duration;

    use crate::base::{Namespace, ServerId, ServerKey};
    use crate::metrics::{Figures, Metrics};

    #[test]
    fn series_end_with_their_server_and_unknown_methods_are_one() {
        let metrics = Metrics::new(HashSet::from(["/p.S/Do".to_owned()]));
        let key = |id: &str| ServerKey::new(Namespace::default(), ServerId::new(id));
        for id in ["stays", "goes"] {
            metrics.call(&key(id), "ok", Duration::from_millis(7));
        }
        for path in ["/p.S/Do", "/p.S/A", "/p.S/B"] {
            metrics.rpc(path, "OK", Duration::from_millis(7));
        }
        let figures = Figures {
            servers: vec![(key("stays"), "ready", 3)],
            ..Figures::default()
        };
        let (text, kind) = metrics.page(figures).unwrap();
        assert!(kind.starts_with("text/plain; version=0.0.4"));
        let holds = |line: &str| assert!(text.lines().any(|known| known == line), "{line}\n{text}");
        holds(r#"mcp_sidecar_calls_total{namespace="default",server="stays",outcome="ok"} 1"#);
        holds(r#"mcp_sidecar_rpcs_total{method="p.S/Do",code="OK"} 1"#);
        holds(r#"mcp_sidecar_rpcs_total{method="other",code="OK"} 2"#);
        holds(r#"mcp_sidecar_servers{state="ready"} 1"#);
        holds("# TYPE mcp_sidecar_call_duration_seconds histogram");
        assert!(!text.contains("goes") && !text.contains("p.S/A"), "{text}");
    }
}
