//! The JSON of every verb, compared with the schema in `docs/schema`.

use std::io::Write;
use std::process::{Command, Stdio};

use serde_json::{Value, json};

use super::daemon;
use super::support::foreign::python;
use super::transcript::Stage;

/// The definition in the schema, and a command that prints it.
const OUTPUTS: &[(&str, &str)] = &[
    ("ls", "tenure ls --json schema:/"),
    ("ls", "tenure ls --json"),
    ("ls", "tenure ls --json repo:repo"),
    ("why", "tenure why --json schema:/held"),
    ("why", "tenure why --json schema:/pool/a"),
    ("why", "tenure why --json schema:/dead/one"),
    ("why", "tenure why --json file"),
    ("why", "tenure why --json Cargo"),
    ("why", "tenure why --json exclusive:db"),
    ("try", "tenure try --json schema:/held"),
    ("try", "tenure try --json free"),
    (
        "watch",
        "timeout -s INT 5 tenure watch --json schema:/held | head -2",
    ),
    ("ask", "tenure ask --json --force schema:/held"),
    ("lock", "tenure lock --json schema:/lock"),
    ("lock", "tenure lock --json --pid $$ other"),
    ("break", "tenure break --json --force other"),
    ("renew", "tenure renew --json $(tenure lock schema:/renew)"),
    (
        "unlock",
        "tenure unlock --json $(tenure lock schema:/unlock)",
    ),
    ("check", "tenure check --json exclusive:db"),
    ("check", "tenure check --json --dry-run exclusive:empty"),
    (
        "fence-check",
        "tenure run schema:/fence -- tenure fence check --json",
    ),
    ("doctor", "tenure doctor --json"),
    ("doctor-address", "tenure doctor --json schema:/held"),
    ("doctor-address", "tenure doctor --json file"),
    ("doctor-address", "tenure doctor --json repo:repo"),
    ("policy-set", "tenure policy set --json schema2:/p point_rw"),
    ("policy", "tenure policy get --json schema2:/p"),
    ("policy-ls", "tenure policy ls --json"),
    ("policy-rm", "tenure policy rm --json schema2:/p"),
    ("cluster-status", "tenure cluster status --json"),
    ("cluster-backup", "tenure cluster backup --json backup"),
    (
        "cluster-restore",
        "tenure cluster restore --json backup --data-dir restored",
    ),
    ("cluster-init", "tenure cluster init --json --data-dir new"),
    (
        "bench",
        "tenure bench --json --seconds 0.1 --over unary unique-lock",
    ),
    ("error", "tenure run -n --json schema:/held -- true 2>&1"),
    ("error", "tenure run -n --json file -- true 2>&1"),
    ("error", "tenure run -n --json tenant:acme -- true 2>&1"),
    ("error", "tenure why --json tenant:acme"),
    (
        "error",
        "tenure break --json --force --id bogus schema:/held",
    ),
    ("error", "tenure cluster drain --json tenure-9"),
    (
        "error",
        "TENURE_URL=tenure://$DEAD tenure ls --json schema:/",
    ),
];

const VALIDATE: &str = r"
import json, sys
import jsonschema_rs
given = json.load(sys.stdin)
wrong = []
for name, command, texts in given['outputs']:
    schema = dict(given['schema'], **{'$ref': '#/$defs/' + name})
    validator = jsonschema_rs.validator_for(schema)
    for text in texts:
        for error in validator.iter_errors(text):
            wrong.append(f'{command}: {error}')
json.dump(wrong, sys.stdout)
";

/// Every output is as the schema says. The schema allows no other fields, so a new field must be described.
#[test]
fn the_json_of_every_verb_is_as_described() {
    let schema: Value =
        serde_json::from_str(include_str!("../../../../docs/schema/output.json")).unwrap();
    let stage = Stage::new(daemon());
    let section = stage.section();
    section.prepare(
        "mkdir db empty repo; hold file; hold --holder vc exclusive:db; echo x > Cargo.lock",
    );
    section.prepare(
        "hold --tenure-only -s repo:repo; hold schema:/held; queue schema:/held schema:/held",
    );
    section.prepare("tenure policy set schema:/pool semaphore; hold --permits 3 schema:/pool/a");
    section.prepare(
        "acquire sa schema:/dead/one; acquire sb schema:/dead/two; acquire sa schema:/dead/two; acquire sb schema:/dead/one",
    );
    let mut outputs = Vec::new();
    for (name, command) in OUTPUTS {
        assert!(
            schema["$defs"][name].is_object(),
            "{name} has no definition"
        );
        let printed = section.run(command);
        let lines = printed.lines().filter(|line| !line.is_empty());
        let values: Vec<Value> = lines
            .map(|line| {
                serde_json::from_str(line)
                    .unwrap_or_else(|error| panic!("{command}: {error}: {line}"))
            })
            .collect();
        assert!(!values.is_empty(), "{command} prints nothing");
        outputs.push(json!([name, command, values]));
    }
    let given = json!({ "schema": schema, "outputs": outputs });
    let mut child = Command::new(python())
        .args(["-c", VALIDATE])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    child
        .stdin
        .take()
        .unwrap()
        .write_all(given.to_string().as_bytes())
        .unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success());
    let wrong: Vec<String> = serde_json::from_slice(&output.stdout).unwrap();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
