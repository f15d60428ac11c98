//! OpenAPI document at `GET /v1/openapi.json`, generated from the proto file and the RPC table.
//!
//! Requests accept more than responses contain (numbers as strings, enum names, `null`). So a
//! message that is used in both directions has two schemas: the plain name is the response's,
//! `…Input` the request's.

use std::collections::BTreeMap;
use std::sync::OnceLock;

use axum::Router;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use http::header::CONTENT_TYPE;
use prost::Message;
use prost_types::field_descriptor_proto::{Label, Type};
use prost_types::{
    DescriptorProto, EnumDescriptorProto, FieldDescriptorProto, FileDescriptorProto,
    FileDescriptorSet,
};
use serde_json::{Map, Value, json};

use crate::rpc::{Effect, Rpc, Unary};

/// Returns the document as text: as served, and as stored in `docs/reference/openapi.json`.
pub fn text() -> &'static str {
    static TEXT: OnceLock<String> = OnceLock::new();
    TEXT.get_or_init(|| format!("{:#}\n", document()))
}

/// Builds the route of the document.
pub(crate) fn router() -> Router {
    Router::new().route("/v1/openapi.json", get(serve))
}

async fn serve() -> Response {
    ([(CONTENT_TYPE, "application/json")], text()).into_response()
}

fn document() -> Value {
    let set = FileDescriptorSet::decode(tenure_wire::DESCRIPTORS).unwrap_or_default();
    let protocol = Protocol::new(&set);
    let mut paths = Map::new();
    let mut schemas = BTreeMap::new();
    for unary in Rpc::unary() {
        let (request, response) = unary.messages;
        protocol.add(request, Direction::Input, &mut schemas);
        protocol.add(response, Direction::Output, &mut schemas);
        let operation = json!({ "post": operation(&protocol, unary) });
        paths.insert(unary.url.to_owned(), operation);
    }
    protocol.add("LockChange", Direction::Output, &mut schemas);
    for (url, item) in others() {
        paths.insert(url.to_owned(), item);
    }
    schemas.insert("Error".to_owned(), error_schema());
    schemas.insert("HealthResponse".to_owned(), health_schema());
    schemas.insert("OwnerEvent".to_owned(), event_schema());
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Tenure",
            "version": env!("CARGO_PKG_VERSION"),
            "description": "The lock service as JSON over HTTP. CONFLICT, QUEUED and LOST are answers, not errors.",
            "license": { "name": "MIT OR Apache-2.0" },
        },
        "servers": [{ "url": "/" }],
        "paths": paths,
        "components": {
            "schemas": schemas,
            "securitySchemes": {
                "token": { "type": "http", "scheme": "bearer", "description": "The client_auth_token of the daemon, if it is configured." },
            },
        },
        "security": [{}, { "token": [] }],
    })
}

fn operation(protocol: &Protocol<'_>, unary: &Unary) -> Value {
    let (request, response) = unary.messages;
    let early = match unary.effect {
        Effect::Reads => "Read-only: allowed in early data over HTTP/3.",
        Effect::Writes => "Not allowed in early data: over HTTP/3 the answer is 425.",
    };
    json!({
        "operationId": unary.url.trim_start_matches("/v1/"),
        "summary": protocol.rpc_comments.get(unary.rpc.name()).cloned().unwrap_or_default(),
        "description": early,
        "requestBody": {
            "required": true,
            "content": { "application/json": { "schema": protocol.reference(request, Direction::Input) } },
        },
        "responses": responses(protocol.reference(response, Direction::Output)),
    })
}

/// Returns every status that a POST may have, each with its schema.
fn responses(ok: Value) -> Value {
    let mut responses = Map::new();
    responses.insert("200".to_owned(), answer("The response.", ok));
    for (status, text) in [
        ("400", "The body is not JSON, or a field is invalid."),
        ("401", "Credentials are missing or wrong."),
        ("408", "The body did not arrive in time (HTTP/3)."),
        (
            "409",
            "The namespace policy changed twice during the request: try again.",
        ),
        (
            "412",
            "Live locks prevent the change, or the named hold does not exist.",
        ),
        ("413", "The body has more than 4 MiB."),
        ("415", "The content type is not JSON."),
        ("422", "The JSON does not match the schema."),
        ("429", "A limit of the service was reached."),
        ("500", "An internal error: see the daemon's log."),
        ("503", "The node cannot serve the request now: try again."),
        ("504", "The deadline passed."),
    ] {
        responses.insert(status.to_owned(), answer(text, reference("Error")));
    }
    let early = json!({ "description": "The request was sent as early data: repeat it after the handshake." });
    responses.insert("425".to_owned(), early);
    Value::Object(responses)
}

fn answer(description: &str, schema: Value) -> Value {
    json!({ "description": description, "content": { "application/json": { "schema": schema } } })
}

fn reference(name: &str) -> Value {
    json!({ "$ref": format!("#/components/schemas/{name}") })
}

/// Returns the paths that are not in the RPC table: health, streams, metrics, this document.
fn others() -> Vec<(&'static str, Value)> {
    let health = |id: &str| {
        json!({
            "operationId": id,
            "summary": "Reports whether this node can serve requests (R145).",
            "responses": {
                "200": answer("The node can serve requests.", reference("HealthResponse")),
                "401": answer("Credentials are missing or wrong.", reference("Error")),
                "503": answer("The node cannot serve requests; `detail` has the reason.", reference("HealthResponse")),
                "504": answer("The deadline passed.", reference("Error")),
            },
        })
    };
    // POST has the same responses as GET, and those of a request body.
    let mut post = health("postHealth");
    post["requestBody"] = json!({
        "required": true,
        "content": { "application/json": { "schema": reference("HealthRequestInput") } },
    });
    for status in ["400", "413", "415", "422"] {
        post["responses"][status] = answer("The body is not `{}`.", reference("Error"));
    }
    let query = |name: &str, required: bool, schema: Value, text: &str| json!({ "name": name, "in": "query", "required": required, "schema": schema, "description": text });
    let stream = |schema: &str, text: &str| {
        json!({
            "200": {
                "description": format!("{text} Every `data:` line is one {schema}."),
                "content": { "text/event-stream": { "schema": { "type": "string" } } },
            },
            "400": answer("A query parameter is missing or invalid.", reference("Error")),
            "401": answer("Credentials are missing or wrong.", reference("Error")),
            "503": answer("The node cannot serve the request now: try again.", reference("Error")),
            "504": answer("The deadline passed.", reference("Error")),
        })
    };
    vec![
        (
            "/v1/health",
            json!({ "get": health("getHealth"), "post": post }),
        ),
        (
            "/v1/events/sse",
            json!({ "get": {
                "operationId": "ownerEvents",
                "summary": "Events of one owner, resumable by Last-Event-ID (R119–R124).",
                "parameters": [
                    query("owner_id", true, json!({ "type": "string", "minLength": 1 }), "The owner whose events are sent."),
                    query("after", false, json!({ "type": "integer", "minimum": 0 }), "The last received id; 0 requests all retained events."),
                    query("details", false, json!({ "type": "string", "enum": ["1"] }), "Adds namespace and fence (E12)."),
                    { "name": "Last-Event-ID", "in": "header", "schema": { "type": "string" }, "description": "Overrides `after`." },
                ],
                "responses": stream("OwnerEvent", "Open until the client disconnects."),
            } }),
        ),
        (
            "/v1/watch/sse",
            json!({ "get": {
                "operationId": "watch",
                "summary": "All changes below a prefix (E8).",
                "parameters": [
                    query("prefix", true, json!({ "type": "string", "minLength": 1 }), "A namespace or a path."),
                    query("snapshot", false, json!({ "type": "string", "enum": ["1", "true"] }), "Start with the locks that are held now."),
                ],
                "responses": stream("LockChange", "Open until the client disconnects. If the watch fails, its last event is an `error`."),
            } }),
        ),
        (
            "/metrics",
            json!({ "get": {
                "operationId": "metrics",
                "summary": "Metrics in the Prometheus text format.",
                "parameters": [
                    query("groups", false, json!({ "type": "string", "enum": ["1"] }), "Adds the metrics of single groups."),
                ],
                "responses": {
                    "200": { "description": "All metrics.", "content": { "text/plain": { "schema": { "type": "string" } } } },
                    "400": answer("The query is not valid.", reference("Error")),
                    "401": answer("Credentials are missing or wrong.", reference("Error")),
                    "503": answer("The node cannot serve the request now: try again.", reference("Error")),
                    "504": answer("The deadline passed.", reference("Error")),
                },
            } }),
        ),
        (
            "/v1/openapi.json",
            json!({ "get": {
                "operationId": "openapi",
                "summary": "This document.",
                "responses": {
                    "200": answer("The OpenAPI document.", json!({ "type": "object" })),
                    "401": answer("Credentials are missing or wrong.", reference("Error")),
                    "503": answer("The node cannot serve the request now: try again.", reference("Error")),
                },
            } }),
        ),
    ]
}

fn error_schema() -> Value {
    json!({
        "type": "object",
        "required": ["error"],
        "properties": { "error": {
            "type": "object",
            "required": ["code", "message"],
            "properties": {
                "code": { "type": "string", "description": "The gRPC status code, for programs." },
                "message": { "type": "string", "description": "The message, for people." },
            },
        } },
    })
}

fn health_schema() -> Value {
    json!({
        "type": "object",
        "required": ["ok", "detail"],
        "properties": {
            "ok": { "type": "boolean" },
            "detail": { "type": "string", "description": "`ready`, or the reason why the node is not ready." },
            "error": error_schema()["properties"]["error"],
        },
    })
}

fn event_schema() -> Value {
    json!({
        "type": "object",
        "required": ["id", "type", "ownerId"],
        "properties": {
            "id": { "type": "integer", "minimum": 0 },
            "type": { "type": "string", "enum": ["killed", "revoke", "grant"] },
            "ownerId": { "type": "string" },
            "namespace": { "type": "string", "description": "With `details=1`." },
            "fence": { "type": "integer", "description": "With `details=1`." },
        },
    })
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Direction {
    Input,
    Output,
}

/// Index of the proto file by name.
struct Protocol<'a> {
    messages: BTreeMap<&'a str, &'a DescriptorProto>,
    enums: BTreeMap<&'a str, &'a EnumDescriptorProto>,
    rpc_comments: BTreeMap<&'a str, String>,
    /// Keyed by message and field.
    field_comments: BTreeMap<(&'a str, &'a str), String>,
}

impl<'a> Protocol<'a> {
    fn new(set: &'a FileDescriptorSet) -> Protocol<'a> {
        let files = || set.file.iter();
        let mut protocol = Protocol {
            messages: files()
                .flat_map(|file| &file.message_type)
                .map(|message| (message.name(), message))
                .collect(),
            enums: files()
                .flat_map(|file| &file.enum_type)
                .map(|found| (found.name(), found))
                .collect(),
            rpc_comments: BTreeMap::new(),
            field_comments: BTreeMap::new(),
        };
        for file in files() {
            protocol.read_comments(file);
        }
        protocol
    }

    /// Collects comments. `SourceCodeInfo` locates them by field numbers of the descriptor: 6 is a
    /// service and 2 its method; 4 is a message and 2 its field.
    fn read_comments(&mut self, file: &'a FileDescriptorProto) {
        for location in file.source_code_info.iter().flat_map(|info| &info.location) {
            let text = location.leading_comments().trim().replace('\n', " ");
            if text.is_empty() {
                continue;
            }
            let at = |index: i32| usize::try_from(index).unwrap_or(usize::MAX);
            match *location.path {
                [6, service, 2, method] => {
                    let service = file.service.get(at(service));
                    if let Some(method) = service.and_then(|found| found.method.get(at(method))) {
                        self.rpc_comments.insert(method.name(), text);
                    }
                }
                [4, message, 2, field] => {
                    let Some(message) = file.message_type.get(at(message)) else {
                        continue;
                    };
                    if let Some(field) = message.field.get(at(field)) {
                        let key = (message.name(), field.name());
                        self.field_comments.insert(key, text);
                    }
                }
                _ => {}
            }
        }
    }

    fn reference(&self, message: &str, direction: Direction) -> Value {
        reference(&schema_name(message, direction))
    }

    /// Adds the schema of a message and of all messages that it contains.
    fn add(&self, name: &str, direction: Direction, schemas: &mut BTreeMap<String, Value>) {
        let key = schema_name(name, direction);
        let Some(message) = self.messages.get(name) else {
            return;
        };
        if schemas.contains_key(&key) {
            return;
        }
        // Inserted before the fields are visited, so that a recursive message ends the recursion.
        schemas.insert(key.clone(), Value::Null);
        let mut properties = Map::new();
        let mut required = Vec::new();
        for field in &message.field {
            let rule = match direction {
                Direction::Input => rule(field.name()),
                Direction::Output => None,
            };
            let is_needed = match &rule {
                Some(rule) => rule.needed,
                None => direction == Direction::Output,
            };
            let mut schema = match rule {
                Some(rule) if rule.needed => rule.schema,
                Some(rule) => json!({ "anyOf": [rule.schema, { "type": "null" }] }),
                None => self.field(message, field, direction, schemas),
            };
            let comment = self.field_comments.get(&(message.name(), field.name()));
            if let (Some(text), Some(schema)) = (comment, schema.as_object_mut()) {
                schema.insert("description".to_owned(), json!(text));
            }
            if is_needed {
                required.push(json!(camel(field.name())));
            }
            properties.insert(camel(field.name()), schema);
        }
        let mut schema = json!({ "type": "object", "properties": properties });
        // A response contains every field; a request requires few.
        if !required.is_empty() {
            schema["required"] = Value::Array(required);
        }
        schemas.insert(key, schema);
    }

    fn field(
        &self,
        message: &DescriptorProto,
        field: &FieldDescriptorProto,
        direction: Direction,
        schemas: &mut BTreeMap<String, Value>,
    ) -> Value {
        let type_name = field.type_name().rsplit('.').next().unwrap_or_default();
        let entry = message.nested_type.iter().find(|nested| {
            nested.name() == type_name && nested.options.as_ref().is_some_and(|o| o.map_entry())
        });
        let schema = if entry.is_some() {
            json!({ "type": "object", "additionalProperties": { "type": "string" } })
        } else if field.label() == Label::Repeated {
            let item = self.single(field, type_name, direction, schemas);
            json!({ "type": "array", "items": item })
        } else {
            self.single(field, type_name, direction, schemas)
        };
        let is_message = field.r#type() == Type::Message && field.label() != Label::Repeated;
        match direction {
            // `null` means absent.
            Direction::Input => json!({ "anyOf": [schema, { "type": "null" }] }),
            Direction::Output if is_message => json!({ "anyOf": [schema, { "type": "null" }] }),
            Direction::Output => schema,
        }
    }

    fn single(
        &self,
        field: &FieldDescriptorProto,
        type_name: &str,
        direction: Direction,
        schemas: &mut BTreeMap<String, Value>,
    ) -> Value {
        let input = direction == Direction::Input;
        match field.r#type() {
            Type::Bool => json!({ "type": "boolean" }),
            Type::Uint32 => integer(input, json!(0), json!(u32::MAX)),
            Type::Uint64 => integer(input, json!(0), json!(u64::MAX)),
            Type::Int64 => integer(input, json!(i64::MIN), json!(i64::MAX)),
            Type::Bytes if input => {
                json!({ "anyOf": [octets(), { "type": "string", "description": "Base64." }] })
            }
            Type::Bytes => octets(),
            Type::Enum => self.enumeration(type_name, input),
            Type::Message => {
                self.add(type_name, direction, schemas);
                self.reference(type_name, direction)
            }
            _ => json!({ "type": "string" }),
        }
    }

    fn enumeration(&self, name: &str, input: bool) -> Value {
        let values = self.enums.get(name).map_or(&[][..], |found| &found.value);
        let numbers: Vec<i32> = values.iter().map(|value| value.number()).collect();
        let names: Vec<&str> = values.iter().map(|value| value.name()).collect();
        if input {
            // One schema per type: generators have no type for an enum of numbers and strings.
            return json!({ "anyOf": [
                { "type": "integer", "enum": numbers },
                { "type": "string", "enum": names },
            ] });
        }
        let list: Vec<String> = numbers
            .iter()
            .zip(&names)
            .map(|(number, name)| format!("{number} {name}"))
            .collect();
        json!({ "type": "integer", "enum": numbers, "description": list.join(", ") })
    }
}

/// Constraints of the specification on a request field.
struct Rule {
    schema: Value,
    needed: bool,
}

/// Returns the constraints that JSON Schema can express. The specification counts bytes and JSON
/// Schema characters: the daemon may still refuse what the schema accepts, but never accepts what
/// the schema refuses.
fn rule(field: &str) -> Option<Rule> {
    let needed = |schema| {
        Some(Rule {
            schema,
            needed: true,
        })
    };
    let optional = |schema| {
        Some(Rule {
            schema,
            needed: false,
        })
    };
    let limit = 604_800_000u64;
    match field {
        "owner_id" | "victim_id" | "start_owner_id" | "conflict_owner" => needed(json!({
            "type": "string", "minLength": 1, "maxLength": 1024, "pattern": "^[^\\u0000]*$",
        })),
        "path" => needed(path()),
        "namespace" => needed(namespace()),
        "ttl_ms" => needed(integer(true, json!(1), json!(limit))),
        "queue_ttl_ms" => optional(integer(true, json!(0), json!(limit))),
        "idempotency_key" => optional(json!({
            "type": "string", "maxLength": 1024, "pattern": "^[^\\u0000]*$",
        })),
        "paths" => optional(json!({ "type": "array", "items": path(), "maxItems": 1024 })),
        "domains" => optional(json!({ "type": "array", "items": namespace(), "maxItems": 1024 })),
        _ => None,
    }
}

/// R1–R4 (path syntax), except for the segments `.` and `..`.
fn path() -> Value {
    json!({
        "type": "string",
        "maxLength": 4096,
        "pattern": "^[^/:\\u0000\\u001f]+:(/|(/[^/\\u0000\\u001f]+)+)$",
        "examples": ["tenant:/acme/projects/42"],
    })
}

/// R11 (namespace strings): a path, or a bare handler.
fn namespace() -> Value {
    json!({
        "type": "string",
        "maxLength": 4096,
        "pattern": "^[^/:\\u0000\\u001f]+(:(/|(/[^/\\u0000\\u001f]+)+))?$",
        "examples": ["tenant:/acme"],
    })
}

fn integer(input: bool, low: Value, high: Value) -> Value {
    let number = json!({ "type": "integer", "minimum": low, "maximum": high });
    if input {
        json!({ "anyOf": [number, { "type": "string", "pattern": "^-?[0-9]+$" }] })
    } else {
        number
    }
}

fn octets() -> Value {
    json!({ "type": "array", "items": { "type": "integer", "minimum": 0, "maximum": 255 } })
}

fn schema_name(message: &str, direction: Direction) -> String {
    match direction {
        Direction::Input => format!("{message}Input"),
        Direction::Output => message.to_owned(),
    }
}

/// Converts `owner_id` to `ownerId`.
fn camel(name: &str) -> String {
    let mut words = name.split('_');
    let first = words.next().unwrap_or_default().to_owned();
    words.fold(first, |mut name, word| {
        let mut letters = word.chars();
        name.extend(letters.next().map(|letter| letter.to_ascii_uppercase()));
        name.extend(letters);
        name
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The copy in the repository is what the daemon serves.
    #[test]
    fn the_copy_in_the_documents_is_current() {
        let path = concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../../docs/reference/openapi.json"
        );
        if std::env::var_os("TENURE_WRITE_REFERENCE").is_some() {
            std::fs::write(path, text()).unwrap();
        }
        let kept = std::fs::read_to_string(path).unwrap();
        assert!(
            kept == text(),
            "docs/reference/openapi.json is old: run this test with TENURE_WRITE_REFERENCE=1"
        );
    }

    /// A response has exactly the fields of its schema, and every RPC has a summary.
    #[test]
    fn answers_are_as_described() {
        let document = document();
        let schema = &document["components"]["schemas"]["AcquireResponse"];
        let answer = serde_json::to_value(tenure_wire::v1::AcquireResponse::default()).unwrap();
        let promised: Vec<&String> = schema["properties"].as_object().unwrap().keys().collect();
        let sent: Vec<&String> = answer.as_object().unwrap().keys().collect();
        assert_eq!(promised, sent);
        for unary in Rpc::unary() {
            let summary = &document["paths"][unary.url]["post"]["summary"];
            assert!(
                summary.as_str().is_some_and(|text| !text.is_empty()),
                "{}",
                unary.url
            );
        }
    }
}
