//! The OpenAPI document of the JSON API, put together from the routes themselves and the types they take and return.

use std::any::TypeId;

use http::Method;
use schemars::generate::SchemaSettings;
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde_json::{Map, Value, json};

/// What a route of the API does, for its documentation.
///
/// ```
/// use tidegate_web::Doc;
/// let doc = Doc::new("List the limits").parameter("upstream", "Only this upstream's");
/// ```
#[derive(Debug, Clone)]
pub struct Doc {
    summary: &'static str,
    parameters: Vec<(&'static str, &'static str, Value)>,
    errors: Vec<(u16, &'static str)>,
    takes_files: bool,
    sends: Vec<&'static str>,
}

impl Doc {
    /// A route of this summary, an imperative.
    #[must_use]
    pub fn new(summary: &'static str) -> Doc {
        Doc { summary, parameters: Vec::new(), errors: Vec::new(), takes_files: false, sends: Vec::new() }
    }

    /// Takes this query parameter, or describes `{name}` of the path.
    #[must_use]
    pub fn parameter(mut self, name: &'static str, description: &'static str) -> Doc {
        self.parameters.push((name, description, json!({"type": "string"})));
        self
    }

    /// The same for a number, from 1.
    #[must_use]
    pub fn number(mut self, name: &'static str, description: &'static str) -> Doc {
        self.parameters.push((name, description, json!({"type": "integer", "minimum": 1})));
        self
    }

    /// Takes a form with the field `files`, as a browser uploads them.
    #[must_use]
    pub fn takes_files(mut self) -> Doc {
        self.takes_files = true;
        self
    }

    /// Sends a file of one of these media types.
    #[must_use]
    pub fn sends(mut self, media_types: &[&'static str]) -> Doc {
        self.sends.extend(media_types);
        self
    }

    /// May fail with this status for this reason, besides what every route may fail with.
    #[must_use]
    pub fn error(mut self, status: u16, description: &'static str) -> Doc {
        self.errors.push((status, description));
        self
    }
}

/// A body's media type and schema.
pub(crate) struct Content {
    media_type: &'static str,
    schema: Value,
}

/// Collects routes while a site is put together.
pub(crate) struct Api {
    generator: SchemaGenerator,
    paths: Map<String, Value>,
}

impl Default for Api {
    fn default() -> Api {
        let settings = SchemaSettings::draft2020_12().with(|settings| {
            settings.definitions_path = "/components/schemas".into();
        });
        Api { generator: settings.into_generator(), paths: Map::new() }
    }
}

/// The body of every error.
#[derive(Debug, serde::Serialize, JsonSchema)]
pub(crate) struct ErrorBody {
    pub(crate) error: ErrorText,
}

/// What went wrong.
#[derive(Debug, serde::Serialize, JsonSchema)]
pub(crate) struct ErrorText {
    /// The HTTP status.
    pub(crate) code: u16,
    /// What happened and what to do, in words.
    pub(crate) message: String,
}

impl Api {
    /// The schema of a JSON body; none for `()`.
    pub(crate) fn content<T: JsonSchema + 'static>(&mut self) -> Option<Content> {
        (TypeId::of::<T>() != TypeId::of::<()>()).then(|| Content {
            media_type: "application/json",
            schema: Schema::to_value(self.generator.subschema_for::<T>()),
        })
    }

    pub(crate) fn add(
        &mut self,
        method: &Method,
        path: &str,
        doc: &Doc,
        takes: Option<Content>,
        returns: Option<Content>,
    ) {
        let in_path = |name: &str| path.contains(&format!("{{{name}}}"));
        let parameters: Vec<Value> = doc
            .parameters
            .iter()
            .map(|(name, description, schema)| {
                let place = if in_path(name) { "path" } else { "query" };
                json!({
                    "name": name, "in": place, "description": description,
                    "required": place == "path", "schema": schema,
                })
            })
            .collect();
        let with_content = |description: &str, content: Option<Content>| match content {
            Some(content) => {
                let mut types = Map::new();
                types.insert(content.media_type.to_owned(), json!({"schema": content.schema}));
                json!({"description": description, "content": types})
            }
            None => json!({"description": description}),
        };
        let error = Schema::to_value(self.generator.subschema_for::<ErrorBody>());
        let mut responses = Map::new();
        responses.insert("200".to_owned(), with_content("Done.", returns));
        for media_type in &doc.sends {
            responses["200"]["content"][*media_type] = json!({});
        }
        let mut errors = doc.errors.clone();
        errors.extend([
            (400, "The request is malformed."),
            (401, "The server needs its token."),
            (403, "The server is read-only, or the request came from another site."),
            (429, "Too many wrong tokens."),
        ]);
        if doc.parameters.iter().any(|(name, ..)| in_path(name)) {
            errors.push((404, "There is no such thing."));
        }
        if takes.is_some() || doc.takes_files {
            errors.extend([(413, "The body is too large."), (415, "The body is of another type.")]);
        }
        for (status, description) in errors {
            let content = Content { media_type: "application/json", schema: error.clone() };
            responses.entry(status.to_string()).or_insert_with(|| with_content(description, Some(content)));
        }
        let mut operation = json!({"summary": doc.summary, "parameters": parameters, "responses": responses});
        if let Some(content) = takes {
            operation["requestBody"] = with_content("", Some(content));
            operation["requestBody"]["required"] = Value::Bool(true);
        }
        if doc.takes_files {
            let schema = json!({
                "type": "object",
                "properties": {"files": {"type": "array", "items": {"type": "string", "format": "binary"}, "minItems": 1}},
                "required": ["files"],
            });
            operation["requestBody"] =
                json!({"required": true, "content": {"multipart/form-data": {"schema": schema}}});
        }
        let methods = self.paths.entry(path.to_owned()).or_insert_with(|| Value::Object(Map::new()));
        methods[method.as_str().to_ascii_lowercase()] = operation;
    }

    /// The whole document.
    pub(crate) fn document(mut self) -> Value {
        let schemas = self.generator.take_definitions(true);
        json!({
            "openapi": "3.1.0",
            "info": {
                "title": "tidegate",
                "version": env!("CARGO_PKG_VERSION"),
                "license": {"name": "MIT OR Apache-2.0"},
                "description": "What the web page shows and does, as JSON. Where the server has a token, send it as \
                                `Authorization: Bearer TOKEN`.",
            },
            "jsonSchemaDialect": "https://json-schema.org/draft/2020-12/schema",
            "paths": self.paths,
            "components": {
                "schemas": schemas,
                "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
            },
            "security": [{}, {"token": []}],
        })
    }
}

impl std::fmt::Debug for Api {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Api").field("paths", &self.paths.keys().collect::<Vec<_>>()).finish_non_exhaustive()
    }
}
