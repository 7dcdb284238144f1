//! The MCP server of a client: lists the tools, carries their calls in and results out, and serves
//! resources.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use rmcp::model::{
    CacheScope, CallToolRequestParams, CallToolResponse, CallToolResult, ContentBlock, Implementation,
    ListResourceTemplatesResult, ListToolsResult, PaginatedRequestParams, ReadResourceRequestParams,
    ReadResourceResponse, ReadResourceResult, ResourceContents, ServerCapabilities, ServerConfig, Tool,
};
use rmcp::service::RequestContext;
use rmcp::{ErrorData, RoleServer, ServerHandler};
use warren_client::files::Files as _;

use crate::server::{Answer, Server};
use crate::{arguments, resources};

const INSTRUCTIONS: &str = "Isolated sandboxes to run commands and keep files in. Call `create_sandbox` first and \
    pass the `sandbox_claim_name` that it returns to the other tools. `run_code` runs Python or shell code that builds on \
    earlier calls. A sandbox keeps its files and processes until \
    `delete_sandbox`, or until this client has gone. Its network may be limited.";

impl Server {
    /// Reads a file of a sandbox as a resource.
    async fn resource(&self, uri: &str) -> Result<ResourceContents, ErrorData> {
        let (sandbox, path) =
            resources::parse(uri).map_err(|error| ErrorData::invalid_params(error, None))?;
        let read = async {
            let _call = self.begin()?;
            let path = arguments::path("path", &path)?;
            let files = self.files(&sandbox, None, None).await?;
            let part = files.read(&path, 0, resources::LARGEST).await?;
            match part.size > resources::LARGEST {
                true => Err(format!(
                    "read `{path}`: {} bytes, and {} are possible; `download_file` reads parts",
                    part.size,
                    resources::LARGEST
                )),
                false => Ok(part.bytes),
            }
        };
        let bytes =
            read.await.map_err(|error| ErrorData::resource_not_found(format!("`{uri}`: {error}"), None))?;
        Ok(match String::from_utf8(bytes) {
            Ok(text) => {
                let media_type = resources::media_type(text.as_bytes(), true);
                ResourceContents::text(text, uri).with_mime_type(media_type)
            }
            Err(error) => {
                let media_type = resources::media_type(error.as_bytes(), false);
                ResourceContents::blob(STANDARD.encode(error.as_bytes()), uri).with_mime_type(media_type)
            }
        })
    }
}

impl From<Answer> for CallToolResult {
    fn from(answer: Answer) -> Self {
        let mut result = Self::structured(answer.value);
        for image in answer.images {
            let data = STANDARD.encode(&image.bytes);
            result.content.push(ContentBlock::image(data, image.kind.media_type()));
        }
        result
    }
}

impl ServerHandler for Server {
    fn get_info(&self) -> ServerConfig {
        let capabilities = ServerCapabilities::builder().enable_tools().enable_resources().build();
        let mut info = ServerConfig::new(capabilities).with_instructions(INSTRUCTIONS);
        info.server_info = Implementation::new("warren", env!("CARGO_PKG_VERSION"));
        info
    }

    async fn list_tools(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        Ok(ListToolsResult::with_all_items(self.tools().to_vec()))
    }

    async fn list_resource_templates(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListResourceTemplatesResult, ErrorData> {
        Ok(ListResourceTemplatesResult::with_all_items(vec![resources::template()]))
    }

    async fn read_resource(
        &self,
        request: ReadResourceRequestParams,
        _: RequestContext<RoleServer>,
    ) -> Result<ReadResourceResponse, ErrorData> {
        let contents = self.resource(&request.uri).await?;
        // The next command may change the file.
        let result = ReadResourceResult::new(vec![contents]);
        Ok(result.with_ttl_ms(0).with_cache_scope(CacheScope::Private).into())
    }

    fn get_tool(&self, name: &str) -> Option<Tool> {
        self.tools().iter().find(|tool| tool.name == name).cloned()
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let _call = match self.begin() {
            Ok(call) => call,
            Err(error) => return Ok(CallToolResult::error(vec![ContentBlock::text(error)]).into()),
        };
        let arguments = request.arguments.unwrap_or_default();
        match self.call(&request.name, arguments, &context.ct).await {
            Some(Ok(answer)) => Ok(CallToolResult::from(answer).into()),
            Some(Err(error)) => Ok(CallToolResult::error(vec![ContentBlock::text(error)]).into()),
            None => Err(ErrorData::invalid_params(format!("there is no tool `{}`", request.name), None)),
        }
    }
}
