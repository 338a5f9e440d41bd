//! Answers of servers whose model takes no pictures. Pure.

/// What they say, in small letters. Each phrase is about pictures and about what the model cannot do.
const PHRASES: [&str; 12] = [
    // llama.cpp
    "image input is not supported",
    // OpenAI and its like
    "image_url is only supported by certain models",
    "does not support image",
    "do not support image",
    "doesn't support image",
    "does not support vision",
    "image inputs are not supported",
    // OpenRouter
    "no endpoints found that support image input",
    // vLLM, SGLang
    "is not a multimodal model",
    "at most 0 image(s) may be provided",
    // Ollama
    "missing data required for image input",
    // Mistral
    "image content is not supported",
];

/// Returns `true` if an error with this body says that the model takes no pictures.
pub(crate) fn says_so(body: &[u8]) -> bool {
    let said = String::from_utf8_lossy(&body[..body.len().min(16 << 10)]).to_lowercase();
    PHRASES.iter().any(|phrase| said.contains(phrase))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_servers_say_is_known_and_other_errors_about_pictures_are_not_taken_for_it() {
        let known = [
            r#"{"error":{"code":500,"message":"image input is not supported - hint: if this is unexpected, you may need to provide the mmproj","type":"server_error"}}"#,
            r#"{"error":{"message":"Invalid content type. image_url is only supported by certain models.","type":"invalid_request_error"}}"#,
            r#"{"object":"error","message":"m is not a multimodal model","code":400}"#,
            r#"{"error":{"message":"No endpoints found that support image input","code":404}}"#,
            r#"{"error":"Model does not support images. Please use a model that does."}"#,
        ];
        assert!(known.iter().all(|body| says_so(body.as_bytes())));
        let others = [
            r#"{"error":{"message":"Invalid base64 image_url.","code":"invalid_base64"}}"#,
            r#"{"error":{"message":"image exceeds 5 MB maximum"}}"#,
            r#"{"error":{"message":"The server had an error"}}"#,
        ];
        assert!(!others.iter().any(|body| says_so(body.as_bytes())));
    }
}
