//! What is posted, and what is read of completions: the calls of the data path.

use super::abi::{self, Cq, CqDataEntry, CqErrEntry, Ep};
use super::object::Object;
use crate::engine::{Endpoint, EngineError};
use libc::c_void;
use std::mem::zeroed;
use std::ptr;

/// An operation's context: the endpoint's number above the caller's.
pub fn pack(endpoint: Endpoint, context: u32) -> *mut c_void {
    ptr::without_provenance_mut((u64::from(endpoint.0) << 32 | u64::from(context)) as usize)
}

pub fn unpack(context: *mut c_void) -> (Endpoint, u32) {
    let context = context.addr() as u64;
    (Endpoint((context >> 32) as u32), context as u32)
}

/// A write, as libfabric takes it. The source is registered and stays mapped; so its owner has checked.
pub struct Write {
    pub from: *mut u8,
    pub len: usize,
    pub descriptor: *mut c_void,
    pub immediate: u32,
    pub to: u64,
    pub key: u64,
    pub context: *mut c_void,
}

/// Posts it. Errors: `Full`, `Failed`.
#[inline]
pub fn write(ep: &Object<Ep>, write: &Write) -> Result<(), EngineError> {
    // SAFETY: an endpoint that is open, with its table for RMA, as it was made with FI_RMA. The source is registered memory, inside of
    // which it was checked to be, and stays until its completion or the endpoint's end.
    let said = unsafe {
        ((*ep.rma).writedata)(
            ep.raw(),
            write.from.cast(),
            write.len,
            write.descriptor,
            u64::from(write.immediate),
            0,
            write.to,
            write.key,
            write.context,
        )
    };
    posted("fi_writedata", said)
}

/// Posts a receive, for an immediate to take: without a byte to be written into.
pub fn receive(ep: &Object<Ep>, endpoint: Endpoint) -> Result<(), EngineError> {
    let none = ptr::null_mut();
    // SAFETY: an open endpoint, with its table for messages, as it was made with FI_MSG; no buffer.
    let said = unsafe { ((*ep.msg).recv)(ep.raw(), none, 0, none, 0, pack(endpoint, 0)) };
    posted("fi_recv", said)
}

fn posted(what: &'static str, said: isize) -> Result<(), EngineError> {
    match said {
        0 => Ok(()),
        again if again == -(libc::EAGAIN as isize) => Err(EngineError::Full),
        error => Err(EngineError::Failed(what, -error as i32)),
    }
}

/// What a completion queue has.
pub enum Read {
    /// So many.
    Entries(usize),
    /// An operation failed.
    Failed { context: *mut c_void, flags: u64 },
}

/// Reads completions, and moves on what is under way.
#[inline]
pub fn read(cq: &Object<Cq>, entries: &mut [CqDataEntry]) -> Result<Read, EngineError> {
    // SAFETY: an open queue, whose entries have the format FI_CQ_FORMAT_DATA; room for as many as are said.
    let said = unsafe { ((*cq.ops).read)(cq.raw(), entries.as_mut_ptr().cast(), entries.len()) };
    if said >= 0 {
        return Ok(Read::Entries(said as usize));
    }
    if said == -(libc::EAGAIN as isize) {
        return Ok(Read::Entries(0));
    }
    if said != -abi::FI_EAVAIL {
        return Err(EngineError::Failed("fi_cq_read", -said as i32));
    }
    // SAFETY: numbers and pointers, all of which may be zero.
    let mut error: CqErrEntry = unsafe { zeroed() };
    // SAFETY: as above; one entry, with no room for the provider's own data.
    let said = unsafe { ((*cq.ops).readerr)(cq.raw(), &raw mut error, 0) };
    if said < 0 {
        return Err(EngineError::Failed("fi_cq_readerr", -said as i32));
    }
    Ok(Read::Failed { context: error.op_context, flags: error.flags })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_context_is_two_numbers() {
        for (endpoint, context) in [(1, 2), (u32::MAX, 0), (0, u32::MAX)] {
            assert_eq!(unpack(pack(Endpoint(endpoint), context)), (Endpoint(endpoint), context));
        }
    }
}
