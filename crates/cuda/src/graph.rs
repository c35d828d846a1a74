//! CUDA graphs: kernels and memory operations that are described once and then launched many times.

use crate::device::Gpu;
use crate::driver::call;
use crate::error::Result;
use crate::kernel::{Kernel, KernelArguments, LaunchConfig};
use crate::stream::{MemoryOperation, Stream};
use cudarc::driver::sys;
use std::ffi::c_void;
use std::sync::Arc;

/// A graph that is being built.
pub struct Graph {
    gpu: Arc<Gpu>,
    raw: sys::CUgraph,
    functions: Vec<Kernel>,
}

/// A node of a graph. Pass it to the graph that returned it, as a dependency of later nodes.
#[derive(Clone, Copy)]
pub struct Node(sys::CUgraphNode);

impl Graph {
    /// Creates an empty graph.
    ///
    /// # Errors
    /// If the driver call fails.
    pub fn new(gpu: &Arc<Gpu>) -> Result<Self> {
        gpu.make_current()?;
        let mut raw = std::ptr::null_mut();
        // SAFETY: the context is current. `drop` destroys the handle.
        unsafe { call!(gpu, cuGraphCreate(&mut raw, 0))? };
        Ok(Self { gpu: gpu.clone(), raw, functions: Vec::new() })
    }

    /// Adds a kernel node that runs after the nodes in `after`.
    ///
    /// # Safety
    /// The conditions of [`Kernel::launch`] hold for every launch of the graph. `after` are nodes of this
    /// graph.
    ///
    /// # Errors
    /// If the driver call fails.
    pub unsafe fn kernel<const N: usize>(
        &mut self,
        after: &[Node],
        function: &Kernel,
        shape: LaunchConfig,
        arguments: impl KernelArguments<N>,
    ) -> Result<Node> {
        self.gpu.make_current()?;
        let mut pointers = arguments.pointers().map(<*const c_void>::cast_mut);
        let parameters = sys::CUDA_KERNEL_NODE_PARAMS {
            func: function.raw(),
            gridDimX: shape.blocks,
            gridDimY: 1,
            gridDimZ: 1,
            blockDimX: shape.threads,
            blockDimY: 1,
            blockDimZ: 1,
            sharedMemBytes: shape.shared_bytes,
            kernelParams: pointers.as_mut_ptr(),
            extra: std::ptr::null_mut(),
            kern: std::ptr::null_mut(),
            ctx: std::ptr::null_mut(),
        };
        let after = handles(after);
        let mut node = std::ptr::null_mut();
        // SAFETY: the driver copies parameters and arguments. The caller promises that the nodes are of this
        // graph.
        unsafe {
            call!(
                self.gpu,
                cuGraphAddKernelNode_v2(&mut node, self.raw, after.as_ptr(), after.len(), &parameters)
            )?
        };
        self.functions.push(function.clone());
        Ok(Node(node))
    }

    /// Adds memory operations to the graph. They execute in order, and only after the nodes in `after`.
    ///
    /// # Safety
    /// As for [`Stream::memory_operations`], for every launch of the graph. `after` are nodes of this graph.
    ///
    /// # Errors
    /// If the driver call fails.
    pub unsafe fn memory_operations(
        &mut self,
        after: &[Node],
        operations: &[MemoryOperation],
    ) -> Result<Node> {
        self.gpu.make_current()?;
        let mut raw: Vec<_> = operations.iter().map(MemoryOperation::raw).collect();
        let parameters = sys::CUDA_BATCH_MEM_OP_NODE_PARAMS {
            ctx: self.gpu.context(),
            count: raw.len() as u32,
            paramArray: raw.as_mut_ptr(),
            flags: 0,
        };
        let after = handles(after);
        let mut node = std::ptr::null_mut();
        // SAFETY: the driver copies the parameters. The caller promises that the nodes are of this graph.
        unsafe {
            call!(
                self.gpu,
                cuGraphAddBatchMemOpNode(&mut node, self.raw, after.as_ptr(), after.len(), &parameters)
            )?
        };
        Ok(Node(node))
    }

    /// Makes the graph ready to launch.
    ///
    /// # Errors
    /// If the driver call fails.
    pub fn instantiate(self) -> Result<GraphExec> {
        self.gpu.make_current()?;
        let mut raw = std::ptr::null_mut();
        // SAFETY: the handle and the pointer are valid. `drop` destroys the new handle.
        unsafe { call!(self.gpu, cuGraphInstantiateWithFlags(&mut raw, self.raw, 0))? };
        Ok(GraphExec { gpu: self.gpu.clone(), raw, _functions: self.functions.clone() })
    }
}

fn handles(nodes: &[Node]) -> Vec<sys::CUgraphNode> {
    nodes.iter().map(|node| node.0).collect()
}

impl Drop for Graph {
    fn drop(&mut self) {
        self.gpu.release("a graph", || {
            // SAFETY: the handle is created once and destroyed once.
            unsafe { call!(self.gpu, cuGraphDestroy(self.raw)) }
        });
    }
}

/// A graph that is ready to launch. If it is launched several times, its launches run one after the other.
pub struct GraphExec {
    gpu: Arc<Gpu>,
    raw: sys::CUgraphExec,
    _functions: Vec<Kernel>,
}

// SAFETY: only one thread at a time may use the handle, and the methods take `&mut self`.
unsafe impl Send for GraphExec {}

impl GraphExec {
    /// Sends the graph to the GPU, so that the first launch is not slower.
    ///
    /// # Errors
    /// If the driver call fails.
    pub fn upload(&mut self, stream: &Stream) -> Result<()> {
        self.gpu.make_current()?;
        // SAFETY: both handles are valid.
        unsafe { call!(self.gpu, cuGraphUpload(self.raw, stream.raw())) }
    }

    /// Queues one run of the graph.
    ///
    /// # Safety
    /// The conditions of [`Graph::kernel`] and [`Graph::memory_operations`] hold for every node until this
    /// run has ended.
    ///
    /// # Errors
    /// If the driver call fails, or earlier work on the GPU failed.
    pub unsafe fn launch(&mut self, stream: &Stream) -> Result<()> {
        self.gpu.make_current()?;
        // SAFETY: both handles are valid. The caller promises that every node's safety conditions hold.
        unsafe { call!(self.gpu, cuGraphLaunch(self.raw, stream.raw())) }
    }
}

impl Drop for GraphExec {
    fn drop(&mut self) {
        self.gpu.release("a graph", || {
            // SAFETY: the handle is created once and destroyed once. The driver lets running launches end.
            unsafe { call!(self.gpu, cuGraphExecDestroy(self.raw)) }
        });
    }
}
