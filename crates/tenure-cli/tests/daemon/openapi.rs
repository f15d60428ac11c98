//! The OpenAPI document compared with the daemon that serves it.

use std::process::Command;

use serde_json::Value;

use super::support::Daemon;
use super::support::foreign::python_program;

/// The daemon serves the document unchanged.
#[test]
fn the_document_is_served() {
    let data = tempfile::tempdir().unwrap();
    let daemon = Daemon::start(data.path());
    let (status, served) = daemon.get("/v1/openapi.json");
    let kept = include_str!("../../../../docs/reference/openapi.json");
    assert_eq!(
        (status, served),
        (200, serde_json::from_str::<Value>(kept).unwrap())
    );
}

/// Requests generated from the document: no server error, and no response that the document does
/// not describe.
#[test]
fn made_up_requests_are_answered_as_described() {
    let data = tempfile::tempdir().unwrap();
    let daemon = Daemon::start(data.path());
    let scratch = tempfile::tempdir().unwrap();
    let output = Command::new(python_program("schemathesis"))
        .current_dir(scratch.path())
        .arg("run")
        .arg(format!("http://{}/v1/openapi.json", daemon.web))
        // Streams have no end.
        .args(["--exclude-path-regex", "/sse$"])
        .args(["--phases", "coverage,fuzzing", "--max-examples", "15", "--seed", "7"])
        .args(["--request-timeout", "20", "--no-color"])
        // A request may be well-formed and still break a rule, so refusals of good data are no finding.
        .args(["--checks", "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance,response_headers_conformance,negative_data_rejection"])
        .env("HYPOTHESIS_STORAGE_DIRECTORY", scratch.path())
        .output()
        .unwrap();
    let told = String::from_utf8_lossy(&output.stdout);
    let wrong = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{told}\n{wrong}");
    assert!(told.contains("Tested:"), "{told}");
    assert_eq!(daemon.get("/v1/health").0, 200);
}
