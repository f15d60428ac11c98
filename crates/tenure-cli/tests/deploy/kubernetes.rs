//! Kubernetes: the manifests have the shape that the API server expects, and name what the daemon knows.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::tools::{file, python, succeeds, yaml};

const BASE: &[&str] = &[
    "services.yaml",
    "statefulset.yaml",
    "disruption-budget.yaml",
    "network-policy.yaml",
];

#[test]
fn the_manifests_pass_the_schemas_of_kubernetes() {
    let mut validate = python("kubernetes-validate");
    validate.args(["-k", "1.31", "--strict"]);
    for name in BASE {
        validate.arg(file("deploy/kubernetes/base").join(name));
    }
    succeeds(&mut validate);
}

/// What a kustomization names exists, and patches name an object of the base.
#[test]
fn the_kustomizations_name_what_exists() {
    let base = file("deploy/kubernetes/base");
    let resources = yaml(&base.join("kustomization.yaml"));
    let named: Vec<&str> = resources[0]["resources"]
        .as_array()
        .unwrap()
        .iter()
        .map(|name| name.as_str().unwrap())
        .collect();
    assert_eq!(named, BASE);
    let identity = |object: &Value| {
        (
            object["kind"].to_string(),
            object["metadata"]["name"].to_string(),
        )
    };
    let objects: BTreeSet<_> = BASE
        .iter()
        .flat_map(|name| yaml(&base.join(name)))
        .map(|object| identity(&object))
        .collect();
    for overlay in ["single", "certificate"] {
        let dir = file("deploy/kubernetes/overlays").join(overlay);
        let kustomization = yaml(&dir.join("kustomization.yaml")).remove(0);
        assert!(
            dir.join(kustomization["resources"][0].as_str().unwrap())
                .join("kustomization.yaml")
                .exists()
        );
        for patch in kustomization["patches"].as_array().unwrap() {
            if let Some(path) = patch["path"].as_str() {
                let patched = yaml(&dir.join(path)).remove(0);
                assert!(objects.contains(&identity(&patched)), "{path}");
            }
        }
    }
}

/// Every variable of the stateful set is a key of the daemon.
#[test]
fn the_stateful_set_sets_only_known_keys() {
    let example = std::fs::read_to_string(file("deploy/tenure.example.toml")).unwrap();
    let mut seen = 0;
    for (name, container) in [
        "base/statefulset.yaml",
        "overlays/single/one-node.yaml",
        "overlays/certificate/certificate.yaml",
    ]
    .map(|name| (name, yaml(&file("deploy/kubernetes").join(name)).remove(0)))
    {
        let containers = &container["spec"]["template"]["spec"]["containers"];
        for variable in containers[0]["env"].as_array().unwrap() {
            let variable = variable["name"].as_str().unwrap();
            let key = variable.strip_prefix("TENURE_").unwrap().to_lowercase();
            assert!(example.contains(&format!("{key} = ")), "{name}: {variable}");
            seen += 1;
        }
    }
    assert!(seen > 8, "{seen}");
}
