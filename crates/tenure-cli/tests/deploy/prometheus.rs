//! Prometheus: alert rules and the dashboard, against a daemon that a real Prometheus scrapes.

use std::collections::BTreeSet;
use std::fs;
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::support::Daemon;
use crate::tools::{debian, file, succeeds, yaml};

#[test]
fn the_alerts_fire_when_they_should() {
    let rules = file("deploy/prometheus/alerts.yaml");
    let tests = file("deploy/prometheus/alerts.test.yaml");
    succeeds(
        debian("promtool", "prometheus")
            .args(["check", "rules"])
            .arg(&rules),
    );
    succeeds(
        debian("promtool", "prometheus")
            .args(["test", "rules"])
            .arg(&tests),
    );
    // Every alert has a test in which it fires.
    let fired: BTreeSet<String> = yaml(&tests)[0]["tests"]
        .as_array()
        .unwrap()
        .iter()
        .flat_map(|test| test["alert_rule_test"].as_array().unwrap().clone())
        .filter(|test| !test["exp_alerts"].as_array().unwrap().is_empty())
        .map(|test| test["alertname"].as_str().unwrap().to_owned())
        .collect();
    let alerts: BTreeSet<String> = alerts().into_iter().map(|(name, _)| name).collect();
    assert_eq!(fired, alerts);
}

/// Names and expressions of all alerts.
fn alerts() -> Vec<(String, String)> {
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let groups = yaml(&file("deploy/prometheus/alerts.yaml")).remove(0);
    groups["groups"]
        .as_array()
        .unwrap()
        .iter()
        .flat_map(|group| group["rules"].as_array().unwrap().clone())
        .map(|rule| (text(&rule["alert"]), text(&rule["expr"])))
        .collect()
}

/// Titles and expressions of the dashboard, with its variables replaced.
fn panels() -> Vec<(String, String)> {
    let text = fs::read_to_string(file("deploy/grafana/dashboard.json")).unwrap();
    let dashboard: Value = serde_json::from_str(&text).unwrap();
    let mut found = Vec::new();
    for panel in dashboard["panels"].as_array().unwrap() {
        for target in panel["targets"].as_array().unwrap() {
            let expression = target["expr"].as_str().unwrap();
            let expression = expression
                .replace("$job", "tenure")
                .replace("$__rate_interval", "1m");
            assert!(!expression.contains('$'), "{expression}");
            found.push((panel["title"].as_str().unwrap().to_owned(), expression));
        }
    }
    found
}

/// A Prometheus that scrapes a daemon. Ends on drop.
struct Prometheus {
    child: Child,
    url: String,
}

impl Prometheus {
    fn start(dir: &Path, target: &str) -> Prometheus {
        let config = json!({
            "global": { "scrape_interval": "1s", "evaluation_interval": "1s" },
            "rule_files": [file("deploy/prometheus/alerts.yaml")],
            "scrape_configs": [{
                "job_name": "tenure",
                "params": { "groups": ["1"] },
                "static_configs": [{ "targets": [target] }],
            }],
        });
        let path = dir.join("prometheus.yaml");
        // JSON is YAML.
        fs::write(&path, config.to_string()).unwrap();
        let free = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = free.local_addr().unwrap();
        drop(free);
        let child = debian("prometheus", "prometheus")
            .arg(format!("--config.file={}", path.display()))
            .arg(format!(
                "--storage.tsdb.path={}",
                dir.join("tsdb").display()
            ))
            .arg(format!("--web.listen-address={address}"))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        Prometheus {
            child,
            url: format!("http://{address}"),
        }
    }

    fn query(&self, expression: &str) -> Command {
        let mut promtool = debian("promtool", "prometheus");
        promtool.args(["query", "instant", &self.url, expression]);
        promtool
    }

    /// Waits until an expression has a result.
    fn wait_for(&self, expression: &str) {
        let end = Instant::now() + Duration::from_secs(60);
        loop {
            let output = self.query(expression).output().unwrap();
            if output.status.success() && !output.stdout.trim_ascii().is_empty() {
                return;
            }
            assert!(Instant::now() < end, "{expression} has no result");
            std::thread::sleep(Duration::from_millis(100));
        }
    }
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns the names of our metrics in an expression.
fn metrics(expression: &str) -> BTreeSet<String> {
    expression
        .split(|letter: char| !letter.is_ascii_alphanumeric() && letter != '_')
        .filter(|word| word.starts_with("tenure_"))
        .map(str::to_owned)
        .collect()
}

#[test]
fn the_alerts_and_the_dashboard_use_series_that_a_scrape_has() {
    let dir = tempfile::tempdir().unwrap();
    let daemon = Daemon::start(&dir.path().join("data"));
    let request = json!({
        "ownerId": "a", "ttlMs": 30000, "requests": [{ "path": "vol:/a" }],
    });
    assert_eq!(daemon.post("/v1/acquire", &request).0, 200);
    // A metric with labels has series only after a first call; errors need a call that fails.
    assert_eq!(daemon.post("/v1/acquire", &json!({ "ownerId": "" })).0, 400);
    let prometheus = Prometheus::start(dir.path(), &daemon.web.to_string());
    prometheus.wait_for("up{job=\"tenure\"} == 1");
    // Rates need two samples.
    prometheus.wait_for("count_over_time(tenure_holds[1m]) >= 3");
    let mut checked = 0;
    for (name, expression) in alerts().into_iter().chain(panels()) {
        succeeds(&mut prometheus.query(&expression));
        for metric in metrics(&expression) {
            let output = succeeds(&mut prometheus.query(&metric));
            assert!(
                !output.stdout.trim_ascii().is_empty(),
                "{name}: there is no series {metric}"
            );
            checked += 1;
        }
    }
    assert!(checked > 20, "{checked}");
    // Nothing is wrong with this daemon, so no alert is active, but for the number of its voters.
    let active = succeeds(&mut prometheus.query("ALERTS{alertname!=\"TenureTooFewVoters\"}"));
    assert_eq!(String::from_utf8_lossy(&active.stdout).trim(), "");
}
