//! sandboxd's `process.v1.ProcessService`, gRPC on port 9090.

/// The port that the service is on.
pub const PORT: u16 = 9090;

/// The path of its methods: `Start`, `Execute`, `WriteStdin`, `SendSignal`, `ResizeTTY`.
pub const SERVICE: &str = "/process.v1.ProcessService/";
