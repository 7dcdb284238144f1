//! The API conformance suite: scenarios are sequences of raw HTTP calls, and what a client can observe of a real
//! kube-apiserver's answers is compared with what it observes of ours.
