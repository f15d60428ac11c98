//! Code generation: Rust types from the proto files, with serde attributes for JSON.
//!
//! Needs no `protoc`: `protox` is a protobuf compiler in Rust. The JSON is not the canonical proto3
//! mapping (enums and 64-bit integers are numbers, every field is present), hence the attributes.

use std::path::PathBuf;

use prost::Message;
use prost_types::field_descriptor_proto::{Label, Type};
use prost_types::{DescriptorProto, FieldDescriptorProto, FileDescriptorSet};

const PROTO: &str = "pathlockd/v1/pathlock.proto";
/// The cluster administration service: gRPC only, without JSON.
const CLUSTER: &str = "tenure/cluster/v1/cluster.proto";
/// Identity and permissions: gRPC only, without JSON.
const AUTH: &str = "tenure/auth/v1/auth.proto";

fn main() -> Result<(), Box<dyn std::error::Error>> {
    // Read at run time, not with `env!`: worktrees may share a target directory.
    let include = PathBuf::from(std::env::var("CARGO_MANIFEST_DIR")?).join("proto");
    println!("cargo::rerun-if-changed={}", include.join(PROTO).display());
    let descriptors = protox::compile([PROTO], [&include])?;

    let out = PathBuf::from(std::env::var("OUT_DIR")?);
    std::fs::write(out.join("descriptors.bin"), descriptors.encode_to_vec())?;
    let mut config = tonic_prost_build::configure()
        .build_server(cfg!(feature = "server"))
        .build_client(cfg!(feature = "client"));
    for (place, attribute) in json_attributes(&descriptors) {
        config = match place {
            FieldSite::Message(name) => config.message_attribute(name, attribute),
            FieldSite::Field(name) => config.field_attribute(name, attribute),
        };
    }
    // An acquire is several times larger than any other operation, and a oneof has the size of its
    // largest variant: without the box every operation of a session moves 340 bytes several times.
    config = config
        .boxed(".pathlockd.v1.SessionRequest.op.acquire")
        .boxed(".pathlockd.v1.SessionResponse.result.acquire");
    config.compile_fds(descriptors)?;

    for (proto, file) in [(CLUSTER, "cluster.bin"), (AUTH, "auth.bin")] {
        println!("cargo::rerun-if-changed={}", include.join(proto).display());
        let descriptors = protox::compile([proto], [&include])?;
        std::fs::write(out.join(file), descriptors.encode_to_vec())?;
        tonic_prost_build::configure()
            .build_server(cfg!(feature = "server"))
            .build_client(cfg!(feature = "client"))
            .compile_fds(descriptors)?;
    }
    Ok(())
}

enum FieldSite {
    Message(String),
    Field(String),
}

/// Returns whether a field is a map: the descriptor has it as a repeated entry message.
fn is_map(message: &DescriptorProto, field: &FieldDescriptorProto) -> bool {
    message.nested_type.iter().any(|nested| {
        let is_entry = nested.options.as_ref().is_some_and(|o| o.map_entry());
        is_entry && field.type_name().ends_with(nested.name())
    })
}

/// Returns the serde attributes of each message and field. Messages with a `oneof` get none: they
/// are used only in sessions, which have no JSON form.
fn json_attributes(descriptors: &FileDescriptorSet) -> Vec<(FieldSite, String)> {
    let mut attributes = Vec::new();
    for file in &descriptors.file {
        for message in file
            .message_type
            .iter()
            .filter(|message| message.oneof_decl.is_empty())
        {
            let message_path = format!(".{}.{}", file.package(), message.name());
            attributes.push((
                FieldSite::Message(message_path.clone()),
                "#[derive(serde::Serialize, serde::Deserialize)] \
                 #[serde(rename_all = \"camelCase\", default)]"
                    .to_owned(),
            ));
            for field in &message.field {
                let reader = match field.r#type() {
                    Type::Message if is_map(message, field) => "list".to_owned(),
                    Type::Message if field.label() == Label::Repeated => "messages".to_owned(),
                    Type::Message => "message".to_owned(),
                    _ if field.label() == Label::Repeated => "list".to_owned(),
                    Type::Enum => {
                        let name = field.type_name().rsplit('.').next().unwrap_or_default();
                        format!("enumeration::<crate::v1::{name}, _>")
                    }
                    Type::Uint32 | Type::Uint64 | Type::Int64 => "integer".to_owned(),
                    Type::Bytes => "octets".to_owned(),
                    _ => "plain".to_owned(),
                };
                let alias = if field.name().contains('_') {
                    format!(", alias = \"{}\"", field.name())
                } else {
                    String::new()
                };
                attributes.push((
                    FieldSite::Field(format!("{message_path}.{}", field.name())),
                    format!("#[serde(deserialize_with = \"crate::json::{reader}\"{alias})]"),
                ));
            }
        }
    }
    attributes
}
