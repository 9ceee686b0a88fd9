//! The part of libfabric's ABI that the engine uses: structures of 1.17's headers (`rdma/fabric.h`, `fi_domain.h`, `fi_eq.h`, `fi_cm.h`,
//! `fi_endpoint.h`, `fi_rma.h`), field by field and in their order.
//!
//! libfabric exports few functions; all others are tables of functions behind its objects, which its headers call inline. A table that the
//! library makes may be longer than ours, and never shorter: each begins with its `size`. The test at the end asks the C compiler for the same
//! sizes and offsets, where the headers are installed.

use libc::{c_char, c_int, c_void};

/// `FI_VERSION(1, 17)`.
pub const VERSION: u32 = 1 << 16 | 17;

pub const FI_MSG: u64 = 1 << 1;
pub const FI_RMA: u64 = 1 << 2;
pub const FI_WRITE: u64 = 1 << 9;
pub const FI_RECV: u64 = 1 << 10;
pub const FI_TRANSMIT: u64 = 1 << 11;
pub const FI_REMOTE_WRITE: u64 = 1 << 13;
pub const FI_REMOTE_CQ_DATA: u64 = 1 << 17;
pub const FI_AFFINITY: u64 = 1 << 29;
pub const FI_SOURCE: u64 = 1 << 57;
/// Of `fi_domain_attr::mode` and `fi_info::mode`: a write with immediate takes a posted receive.
pub const FI_RX_CQ_DATA: u64 = 1 << 56;

pub const FI_MR_LOCAL: c_int = 1 << 2;
pub const FI_MR_VIRT_ADDR: c_int = 1 << 4;
pub const FI_MR_ALLOCATED: c_int = 1 << 5;
pub const FI_MR_PROV_KEY: c_int = 1 << 6;

pub const FI_ORDER_WAW: u64 = 1 << 4;
pub const FI_ORDER_RMA_WAW: u64 = 1 << 35;

pub const FI_PROGRESS_MANUAL: c_int = 2;
pub const FI_THREAD_DOMAIN: c_int = 3;
pub const FI_EP_MSG: c_int = 1;
pub const FI_WAIT_FD: c_int = 3;
pub const FI_CQ_FORMAT_DATA: c_int = 3;

pub const FI_CONNREQ: u32 = 1;
pub const FI_CONNECTED: u32 = 2;
pub const FI_SHUTDOWN: u32 = 3;

/// `fi_control` commands.
pub const FI_GETWAIT: c_int = 5;
pub const FI_ENABLE: c_int = 6;

/// An error stands first in a queue (`rdma/fi_errno.h`).
pub const FI_EAVAIL: isize = 259;

#[repr(C)]
pub struct TxAttr {
    pub caps: u64,
    pub mode: u64,
    pub op_flags: u64,
    pub msg_order: u64,
    pub comp_order: u64,
    pub inject_size: usize,
    pub size: usize,
    pub iov_limit: usize,
    pub rma_iov_limit: usize,
    pub tclass: u32,
}

#[repr(C)]
pub struct RxAttr {
    pub caps: u64,
    pub mode: u64,
    pub op_flags: u64,
    pub msg_order: u64,
    pub comp_order: u64,
    pub total_buffered_recv: usize,
    pub size: usize,
    pub iov_limit: usize,
}

#[repr(C)]
pub struct EpAttr {
    pub kind: c_int,
    pub protocol: u32,
    pub protocol_version: u32,
    pub max_msg_size: usize,
    pub msg_prefix_size: usize,
    pub max_order_raw_size: usize,
    pub max_order_war_size: usize,
    pub max_order_waw_size: usize,
    pub mem_tag_format: u64,
    pub tx_ctx_cnt: usize,
    pub rx_ctx_cnt: usize,
    pub auth_key_size: usize,
    pub auth_key: *mut u8,
}

#[repr(C)]
pub struct DomainAttr {
    pub domain: *mut Domain,
    pub name: *mut c_char,
    pub threading: c_int,
    pub control_progress: c_int,
    pub data_progress: c_int,
    pub resource_mgmt: c_int,
    pub av_type: c_int,
    pub mr_mode: c_int,
    pub mr_key_size: usize,
    pub cq_data_size: usize,
    pub cq_cnt: usize,
    pub ep_cnt: usize,
    pub tx_ctx_cnt: usize,
    pub rx_ctx_cnt: usize,
    pub max_ep_tx_ctx: usize,
    pub max_ep_rx_ctx: usize,
    pub max_ep_stx_ctx: usize,
    pub max_ep_srx_ctx: usize,
    pub cntr_cnt: usize,
    pub mr_iov_limit: usize,
    pub caps: u64,
    pub mode: u64,
    pub auth_key: *mut u8,
    pub auth_key_size: usize,
    pub max_err_data: usize,
    pub mr_cnt: usize,
    pub tclass: u32,
}

#[repr(C)]
pub struct FabricAttr {
    pub fabric: *mut Fabric,
    pub name: *mut c_char,
    pub prov_name: *mut c_char,
    pub prov_version: u32,
    pub api_version: u32,
}

#[repr(C)]
pub struct Info {
    pub next: *mut Info,
    pub caps: u64,
    pub mode: u64,
    pub addr_format: u32,
    pub src_addrlen: usize,
    pub dest_addrlen: usize,
    pub src_addr: *mut c_void,
    pub dest_addr: *mut c_void,
    pub handle: *mut Fid,
    pub tx_attr: *mut TxAttr,
    pub rx_attr: *mut RxAttr,
    pub ep_attr: *mut EpAttr,
    pub domain_attr: *mut DomainAttr,
    pub fabric_attr: *mut FabricAttr,
    pub nic: *mut c_void,
}

/// What each object begins with.
#[repr(C)]
pub struct Fid {
    pub class: usize,
    pub context: *mut c_void,
    pub ops: *const Ops,
}

#[repr(C)]
pub struct Ops {
    pub size: usize,
    pub close: unsafe extern "C" fn(*mut Fid) -> c_int,
    pub bind: unsafe extern "C" fn(*mut Fid, *mut Fid, u64) -> c_int,
    pub control: unsafe extern "C" fn(*mut Fid, c_int, *mut c_void) -> c_int,
}

#[repr(C)]
pub struct Fabric {
    pub fid: Fid,
    pub ops: *const FabricOps,
    pub api_version: u32,
}

#[repr(C)]
pub struct FabricOps {
    pub size: usize,
    pub domain: unsafe extern "C" fn(*mut Fabric, *mut Info, *mut *mut Domain, *mut c_void) -> c_int,
    pub passive_ep: unsafe extern "C" fn(*mut Fabric, *mut Info, *mut *mut Pep, *mut c_void) -> c_int,
    pub eq_open: unsafe extern "C" fn(*mut Fabric, *mut EqAttr, *mut *mut Eq, *mut c_void) -> c_int,
    pub wait_open: *const c_void,
    pub trywait: unsafe extern "C" fn(*mut Fabric, *mut *mut Fid, c_int) -> c_int,
}

#[repr(C)]
pub struct Domain {
    pub fid: Fid,
    pub ops: *const DomainOps,
    pub mr: *const MrOps,
}

#[repr(C)]
pub struct DomainOps {
    pub size: usize,
    pub av_open: *const c_void,
    pub cq_open: unsafe extern "C" fn(*mut Domain, *mut CqAttr, *mut *mut Cq, *mut c_void) -> c_int,
    pub endpoint: unsafe extern "C" fn(*mut Domain, *mut Info, *mut *mut Ep, *mut c_void) -> c_int,
}

#[repr(C)]
pub struct MrOps {
    pub size: usize,
    pub reg: unsafe extern "C" fn(
        *mut Fid,
        *const c_void,
        usize,
        u64,
        u64,
        u64,
        u64,
        *mut *mut Mr,
        *mut c_void,
    ) -> c_int,
}

#[repr(C)]
pub struct Mr {
    pub fid: Fid,
    pub mem_desc: *mut c_void,
    pub key: u64,
}

#[repr(C)]
pub struct EqAttr {
    pub size: usize,
    pub flags: u64,
    pub wait_obj: c_int,
    pub signaling_vector: c_int,
    pub wait_set: *mut c_void,
}

/// Connection data comes behind it.
#[repr(C)]
pub struct EqCmEntry {
    pub fid: *mut Fid,
    pub info: *mut Info,
}

#[repr(C)]
pub struct EqErrEntry {
    pub fid: *mut Fid,
    pub context: *mut c_void,
    pub data: u64,
    pub err: c_int,
    pub prov_errno: c_int,
    pub err_data: *mut c_void,
    pub err_data_size: usize,
}

#[repr(C)]
pub struct Eq {
    pub fid: Fid,
    pub ops: *const EqOps,
}

#[repr(C)]
pub struct EqOps {
    pub size: usize,
    pub read: unsafe extern "C" fn(*mut Eq, *mut u32, *mut c_void, usize, u64) -> isize,
    pub readerr: unsafe extern "C" fn(*mut Eq, *mut EqErrEntry, u64) -> isize,
}

#[repr(C)]
pub struct CqAttr {
    pub size: usize,
    pub flags: u64,
    pub format: c_int,
    pub wait_obj: c_int,
    pub signaling_vector: c_int,
    pub wait_cond: c_int,
    pub wait_set: *mut c_void,
}

#[repr(C)]
#[derive(Copy, Clone)]
pub struct CqDataEntry {
    pub op_context: *mut c_void,
    pub flags: u64,
    pub len: usize,
    pub buf: *mut c_void,
    pub data: u64,
}

#[repr(C)]
pub struct CqErrEntry {
    pub op_context: *mut c_void,
    pub flags: u64,
    pub len: usize,
    pub buf: *mut c_void,
    pub data: u64,
    pub tag: u64,
    pub olen: usize,
    pub err: c_int,
    pub prov_errno: c_int,
    pub err_data: *mut c_void,
    pub err_data_size: usize,
}

#[repr(C)]
pub struct Cq {
    pub fid: Fid,
    pub ops: *const CqOps,
}

#[repr(C)]
pub struct CqOps {
    pub size: usize,
    pub read: unsafe extern "C" fn(*mut Cq, *mut c_void, usize) -> isize,
    pub readfrom: *const c_void,
    pub readerr: unsafe extern "C" fn(*mut Cq, *mut CqErrEntry, u64) -> isize,
}

#[repr(C)]
pub struct Ep {
    pub fid: Fid,
    pub ops: *const c_void,
    pub cm: *const CmOps,
    pub msg: *const MsgOps,
    pub rma: *const RmaOps,
}

#[repr(C)]
pub struct Pep {
    pub fid: Fid,
    pub ops: *const c_void,
    pub cm: *const CmOps,
}

#[repr(C)]
pub struct CmOps {
    pub size: usize,
    pub setname: *const c_void,
    pub getname: unsafe extern "C" fn(*mut Fid, *mut c_void, *mut usize) -> c_int,
    pub getpeer: *const c_void,
    pub connect: unsafe extern "C" fn(*mut Ep, *const c_void, *const c_void, usize) -> c_int,
    pub listen: unsafe extern "C" fn(*mut Pep) -> c_int,
    pub accept: unsafe extern "C" fn(*mut Ep, *const c_void, usize) -> c_int,
    pub reject: unsafe extern "C" fn(*mut Pep, *mut Fid, *const c_void, usize) -> c_int,
}

#[repr(C)]
pub struct MsgOps {
    pub size: usize,
    pub recv: unsafe extern "C" fn(*mut Ep, *mut c_void, usize, *mut c_void, u64, *mut c_void) -> isize,
}

#[repr(C)]
pub struct RmaOps {
    pub size: usize,
    pub read: *const c_void,
    pub readv: *const c_void,
    pub readmsg: *const c_void,
    pub write:
        unsafe extern "C" fn(*mut Ep, *const c_void, usize, *mut c_void, u64, u64, u64, *mut c_void) -> isize,
    pub writev: *const c_void,
    pub writemsg: *const c_void,
    pub inject: *const c_void,
    pub writedata: unsafe extern "C" fn(
        *mut Ep,
        *const c_void,
        usize,
        *mut c_void,
        u64,
        u64,
        u64,
        u64,
        *mut c_void,
    ) -> isize,
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::mem::{offset_of, size_of};
    use std::process::Command;

    /// Each as C says it, and as Rust has it.
    fn facts() -> Vec<(String, usize)> {
        let mut facts = Vec::new();
        macro_rules! sizes {
            ($($c:literal $rust:ty),* $(,)?) => { $(facts.push((format!("sizeof({})", $c), size_of::<$rust>()));)* };
        }
        macro_rules! offsets {
            ($($c:literal $rust:ty: $($field:ident)*;)*) => {
                $($(
                    let field = stringify!($field).replace("kind", "type");
                    facts.push((format!("offsetof({}, {field})", $c), offset_of!($rust, $field)));
                )*)*
            };
        }
        sizes! {
            "struct fi_tx_attr" TxAttr, "struct fi_rx_attr" RxAttr, "struct fi_ep_attr" EpAttr,
            "struct fi_domain_attr" DomainAttr, "struct fi_fabric_attr" FabricAttr, "struct fi_info" Info,
            "struct fid" Fid, "struct fid_fabric" Fabric, "struct fid_domain" Domain, "struct fid_mr" Mr,
            "struct fi_eq_attr" EqAttr, "struct fi_eq_cm_entry" EqCmEntry, "struct fi_eq_err_entry" EqErrEntry,
            "struct fi_cq_attr" CqAttr, "struct fi_cq_data_entry" CqDataEntry, "struct fi_cq_err_entry" CqErrEntry,
            "struct fid_eq" Eq, "struct fid_cq" Cq, "struct fid_pep" Pep,
        }
        offsets! {
            "struct fi_tx_attr" TxAttr: caps msg_order inject_size size tclass;
            "struct fi_rx_attr" RxAttr: caps msg_order size;
            "struct fi_ep_attr" EpAttr: kind protocol max_msg_size max_order_waw_size rx_ctx_cnt auth_key;
            "struct fi_domain_attr" DomainAttr: name threading data_progress mr_mode mr_key_size cq_data_size caps mode tclass;
            "struct fi_fabric_attr" FabricAttr: prov_name api_version;
            "struct fi_info" Info: mode addr_format src_addrlen src_addr dest_addr handle tx_attr ep_attr domain_attr fabric_attr;
            "struct fi_ops" Ops: close bind control;
            "struct fi_ops_fabric" FabricOps: domain passive_ep eq_open trywait;
            "struct fi_ops_domain" DomainOps: cq_open endpoint;
            "struct fi_ops_mr" MrOps: reg;
            "struct fid_mr" Mr: mem_desc key;
            "struct fi_ops_eq" EqOps: read readerr;
            "struct fi_ops_cq" CqOps: read readerr;
            "struct fi_ops_cm" CmOps: getname connect listen accept reject;
            "struct fi_ops_msg" MsgOps: recv;
            "struct fi_ops_rma" RmaOps: write writedata;
            "struct fid_ep" Ep: cm msg rma;
            "struct fi_cq_data_entry" CqDataEntry: flags data;
            "struct fi_cq_err_entry" CqErrEntry: err prov_errno;
        }
        let constants = [
            ("FI_RX_CQ_DATA", FI_RX_CQ_DATA as usize),
            ("FI_REMOTE_CQ_DATA", FI_REMOTE_CQ_DATA as usize),
            ("FI_TRANSMIT", FI_TRANSMIT as usize),
            ("FI_AFFINITY", FI_AFFINITY as usize),
            ("FI_SOURCE", FI_SOURCE as usize),
            ("FI_ORDER_RMA_WAW", FI_ORDER_RMA_WAW as usize),
            ("FI_MR_PROV_KEY", FI_MR_PROV_KEY as usize),
            ("FI_GETWAIT", FI_GETWAIT as usize),
            ("FI_ENABLE", FI_ENABLE as usize),
            ("FI_EAVAIL", FI_EAVAIL as usize),
            ("FI_THREAD_DOMAIN", FI_THREAD_DOMAIN as usize),
            ("FI_PROGRESS_MANUAL", FI_PROGRESS_MANUAL as usize),
            ("FI_WAIT_FD", FI_WAIT_FD as usize),
            ("FI_CQ_FORMAT_DATA", FI_CQ_FORMAT_DATA as usize),
            ("FI_SHUTDOWN", FI_SHUTDOWN as usize),
        ];
        facts.extend(constants.map(|(name, value)| (name.to_owned(), value)));
        facts
    }

    #[test]
    fn the_c_compiler_has_the_same_sizes_and_offsets() {
        if !std::path::Path::new("/usr/include/rdma/fi_rma.h").exists() {
            eprintln!("skipped: libfabric's headers are not installed (libfabric-dev)");
            return;
        }
        let facts = facts();
        let lines: String =
            facts.iter().map(|(c, _)| format!("printf(\"%zu\\n\", (size_t)({c}));\n")).collect();
        let headers = ["fabric", "fi_domain", "fi_eq", "fi_cm", "fi_endpoint", "fi_rma"];
        let includes: String = headers.iter().map(|name| format!("#include <rdma/{name}.h>\n")).collect();
        let directory = tempfile::tempdir().expect("a directory");
        let (source, program) = (directory.path().join("abi.c"), directory.path().join("abi"));
        let text =
            format!("#include <stdio.h>\n#include <stddef.h>\n{includes}int main(void) {{\n{lines}}}\n");
        std::fs::write(&source, text).expect("a file");
        let cc = Command::new("cc").arg("-o").arg(&program).arg(&source).status().expect("a C compiler");
        assert!(cc.success());
        let said = Command::new(&program).output().expect("it runs").stdout;
        let said: Vec<usize> = String::from_utf8(said).unwrap().lines().map(|n| n.parse().unwrap()).collect();
        assert_eq!(said.len(), facts.len());
        for ((what, ours), theirs) in facts.iter().zip(said) {
            assert_eq!(*ours, theirs, "{what}");
        }
    }
}
