//! Fuzz targets. `packaging/fuzz` drives them with libFuzzer, and the test `corpus` runs them on their corpora.

/// Declares the targets, one module of `targets/` each.
macro_rules! targets {
    ($($name:ident)*) => {
        mod targets {
            $(pub mod $name;)*
        }

        /// All targets: the name, and the function that processes one input. The function panics if the input shows a fault.
        pub const TARGETS: &[(&str, fn(&[u8]))] = &[$((stringify!($name), targets::$name::run)),*];
    };
}

targets! {
    authentication capture engine manager memif model nvme_controller nvme_host offload peer rdma rendezvous ring tcp texts units wire
}
