# The blob (blob.rs): its data, which begin with `Words`, then its code. Names in braces are constants that blob.rs fills in.

    .pushsection .rodata.shunpike_inject, "a", @progbits
    .globl shunpike_inject_data
    .globl shunpike_inject_text
    .globl shunpike_inject_handler
    .globl shunpike_inject_begin
    .globl shunpike_inject_shown
    .globl shunpike_inject_end
    .hidden shunpike_inject_data
    .hidden shunpike_inject_text
    .hidden shunpike_inject_handler
    .hidden shunpike_inject_begin
    .hidden shunpike_inject_shown
    .hidden shunpike_inject_end

# The state, by GS. The first eight words are as `state` has them. Behind SURPLUS a library has one for itself, then KEPT_BACK, which it
# sets when signals are to be delivered; from 128 on it is a library's.
    .set SELF, 0
    .set TOP, 8
    .set FIRST, 16
    .set LAST, 24
    .set STACK, 32
    .set ALT_BASE, 40
    .set ALT_SIZE, 48
    .set VFORKS, 56
    .set SURPLUS, 64
    .set KEPT_BACK, 80

# A frame: the number, which becomes the result; the arguments; the rest. UP is what TOP is without it. RSP is -1 or 0 in one that is free.
# APART is the program's stack where the handler has another, else 0.
    .set F_RAX, 0
    .set F_RDI, 8
    .set F_RSI, 16
    .set F_RDX, 24
    .set F_R10, 32
    .set F_R8, 40
    .set F_R9, 48
    .set F_DESCRIPTION, 56
    .set F_RSP, 64
    .set F_FLAGS, 72
    .set F_XMM, 80
    .set F_UP, 336
    .set F_RBX, 344
    .set F_RBP, 352
    .set F_R12, 360
    .set F_R13, 368
    .set F_R14, 376
    .set F_R15, 384
    .set F_APART, 392

# What a signal finds (see .Lzones). NONE: nothing that matters. ENTRY: all is the program's but r11, and rcx, which is the description.
# ENTERED: TOP is a frame that goes. NUMBER: rax and the description are in it. FLAGS: they, too. INSIDE: the frame is whole, and we are at
# work. LOOK: so, and the look at KEPT_BACK can be made again. BACK: rcx is where the program goes on; what else is not the program's is in
# the frame. GONE: there is no frame any more. BEHIND: the program's call has been made, and r11 is the description. BEHIND_RCX: rcx is.
    .set zone, 0
    .irp name, NONE, ENTRY, ENTERED, NUMBER, FLAGS, INSIDE, LOOK, BACK, GONE, BEHIND, BEHIND_RCX
    .set \name, zone
    .set zone, zone + 1
    .endr

    .p2align 12
shunpike_inject_data:
1:  .quad 0                     # the handler
2:  .quad 0                     # the counters, or 0
.Lhelper:
    .quad 0                     # the helper's pid, and where the program begins
.Lfirst:
    .quad 0
.Lstart:
    .quad 0
.Ldeliver:
    .quad 0
3:  .quad 0                     # 1: the program has a filter of its own, so we make no calls that it may not expect
.Lpending:
    .fill {slots}, 8, 0
.Lfree:
    .fill {slots}, 8, 0
    .set .Lhandler, 1b
    .set .Lcounts, 2b
    .set .Lalone, 3b

# SURPLUS of threads that have ended.
.Lsurplus:
    .quad 0
.Lchild:
    .quad 1 << 16               # SIGCHLD
.Lno_time:
    .quad 0, 0

shunpike_inject_shown:
    .fill {counted}, 1, 0

    .p2align 12
shunpike_inject_text:
    jmp .Lafter_thread
    .p2align 3
    jmp .Lafter_vfork

    .p2align 6
.Lentry:
# The first instruction has more than the eight bytes that .Larch_prctl replaces by one store. No flags are changed before they are saved.
    mov r11, gs:[TOP]
    lea r11, [r11 - {frame}]
    mov gs:[TOP], r11
.Lentered:
    mov [r11 + F_RAX], rax
    mov [r11 + F_DESCRIPTION], rcx
.Lnumber:
    lahf
    seto al
    mov [r11 + F_FLAGS], rax
.Lflags:
    mov rax, [r11 + F_RAX]
    mov ecx, {counted} - 1
    cmp rax, rcx
    cmova rax, rcx
    mov rcx, [rip + .Lcounts]
    test rcx, rcx
    jnz .Lcount
.Lcounted:
    lea rcx, [rip + shunpike_inject_shown]
    cmp byte ptr [rcx + rax], 0
    jne .Lshown
.Lunseen:
    mov rcx, [r11 + F_DESCRIPTION]
    mov rcx, [rcx]
    mov eax, [r11 + F_FLAGS]
    add al, 0x7f
    sahf
    mov rax, [r11 + F_RAX]
    lea r11, [r11 + {frame}]
    mov gs:[TOP], r11
.Lleft:
    jmp rcx

.Lcount:
    lock inc qword ptr [rcx + 8 * rax]
    jmp .Lcounted

.Lshown:
    cmp r11, gs:[LAST]
    jb .Lunseen
    mov [r11 + F_RDI], rdi
    mov [r11 + F_RSI], rsi
    mov [r11 + F_RDX], rdx
    mov [r11 + F_R10], r10
    mov [r11 + F_R8], r8
    mov [r11 + F_R9], r9
    .irp n, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15
    movups [r11 + F_XMM + 16 * \n], xmm\n
    .endr
    mov [r11 + F_RBX], rbx
    mov [r11 + F_RBP], rbp
    mov [r11 + F_R12], r12
    mov [r11 + F_R13], r13
    mov [r11 + F_R14], r14
    mov [r11 + F_R15], r15
    mov qword ptr [r11 + F_APART], 0
    lea rcx, [r11 + {frame}]
    mov [r11 + F_UP], rcx
    mov [r11 + F_RSP], rsp
# The frame is whole.
.Lsaved:
# An entry within an entry is a signal handler's: where it stands there is room, and our stack is in use. One on an alternate stack stays
# there, or the kernel would give that to the next signal as if it were free.
    cmp r11, gs:[FIRST]
    jne 1f
    mov rcx, rsp
    sub rcx, gs:[ALT_BASE]
    cmp rcx, gs:[ALT_SIZE]
    jb 1f
    mov [r11 + F_APART], rsp
    mov rsp, gs:[STACK]
    jmp 2f
1:  lea rsp, [rsp - 128]
    and rsp, -16
2:  mov rdi, gs:[SELF]
    mov rsi, r11
    call [rip + .Lhandler]
# What comes from here on is kept back, and this look is made again: rax is the answer, and rsp ours, until .Lback.
.Lanswered:
    cmp qword ptr gs:[KEPT_BACK], 0
    jne .Lkept_back
.Ldelivered:
    mov r11, gs:[TOP]
    .irp n, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15
    movups xmm\n, [r11 + F_XMM + 16 * \n]
    .endr
    test eax, eax
    mov rcx, [r11 + F_DESCRIPTION]
    jnz .Lothers
    mov rcx, [rcx]
.Lrestore:
    mov rdi, [r11 + F_RDI]
    mov rsi, [r11 + F_RSI]
    mov rdx, [r11 + F_RDX]
    mov r10, [r11 + F_R10]
    mov r8, [r11 + F_R8]
    mov r9, [r11 + F_R9]
    mov rsp, [r11 + F_RSP]
.Lback:
    mov eax, [r11 + F_FLAGS]
    add al, 0x7f
    sahf
    mov rax, [r11 + F_RAX]
    mov qword ptr [r11 + F_RSP], -1
    mov r11, [r11 + F_UP]
    mov gs:[TOP], r11
.Lgone:
    jmp rcx

.Lothers:
    cmp eax, {vfork}
    je 5f
    ja .Lexit
    cmp eax, {thread}
    je 4f
    mov rcx, [rcx + 8]
    jmp .Lrestore
4:  lea rcx, [rcx + {description}]
    jmp .Lrestore
5:  lea rcx, [rcx + {description} + {call}]
    jmp .Lrestore

# Once more, as one may come while others are delivered. A thread that ends has all of them blocked, and gets none.
.Lkept_back:
    cmp eax, {vfork}
    ja .Ldelivered
    push rax
    lea rsp, [rsp - 8]
    mov edi, eax
    call [rip + .Ldeliver]
    lea rsp, [rsp + 8]
    pop rax
    jmp .Lanswered

# The thread ends, and signals are blocked: with all that is needed in registers, its block goes to the next one.
.Lexit:
    mov r8, [rcx]
    mov r9, [r11 + F_RDI]
    mov rsp, [r11 + F_RSP]
    mov rdi, gs:[SELF]
    lea rdx, [rip + .Lfree]
    lea rsi, [rdx + 8 * {slots}]
1:  xor eax, eax
    lock cmpxchg [rdx], rdi
    je 2f
    lea rdx, [rdx + 8]
    cmp rdx, rsi
    jb 1b
    lea rdi, [rdi - {state_at}]
    mov esi, {block}
    mov eax, 11                 # munmap
    syscall
2:  mov rdi, r9
    mov eax, 60
    jmp r8

# What runs before the program. Where that is the one that orphans fall to (a container's first process), the helper is its child now, and
# would stay behind as a zombie, and its SIGCHLD would wait if that is blocked. Exec has left no register but rsp.
shunpike_inject_begin:
    mov edi, [rip + .Lhelper]
    xor esi, esi
    mov edx, 0x40000000         # __WALL
    xor r10d, r10d
    mov eax, 61                 # wait4
    syscall
    cmp rax, -4                 # EINTR
    je shunpike_inject_begin
    test rax, rax
    jle 1f
    lea rdi, [rip + .Lchild]
    lea rdx, [rip + .Lno_time]
    mov r10d, 8
    mov eax, 128                # rt_sigtimedwait
    syscall
# A library starts on our stack. It is shown the program's, and our text and its zones.
1:  mov rax, [rip + .Lstart]
    test rax, rax
    jz 1f
    mov rbx, rsp
    mov rsp, gs:[STACK]
    mov rdi, rbx
    lea rsi, [rip + shunpike_inject_text]
    lea rdx, [rip + shunpike_inject_end]
    lea rcx, [rip + shunpike_inject_handler]
    lea r8, [rip + .Lzones]
    call rax
    mov rsp, rbx
1:  xor eax, eax
    xor ebx, ebx
    xor ecx, ecx
    xor edx, edx
    xor esi, esi
    xor edi, edi
    xor r8d, r8d
    xor r9d, r9d
    xor r10d, r10d
    xor r11d, r11d
    jmp [rip + .Lfirst]

# rcx is the description. Flags are kept here, too: only jrcxz looks.
.Lafter_thread:
    mov r11, rcx
.Lafter_parent:
    mov rcx, rax
    jrcxz 1f
    bswap rcx
    movzx ecx, cl
    jrcxz 2f
# It failed: the block stays pending, and serves the next one.
    mov rcx, gs:[SURPLUS]
    lea rcx, [rcx + 1]
    mov gs:[SURPLUS], rcx
2:  mov rcx, [r11 + 8]
    jmp rcx
# The child. rax is 0 and so has room for the flags.
.Lafter_child:
1:  mov rcx, [r11 + 8]
    lahf
    seto al
    xor r11d, r11d
3:  .set k, 0
    .rept {slots}
    xchg [rip + .Lpending + 8 * k], r11
    test r11, r11
    jnz 4f
    .set k, k + 1
    .endr
    pause
    jmp 3b
4:  wrgsbase r11
    add al, 0x7f
    sahf
    mov eax, 0
    jmp rcx

.Lafter_vfork:
    mov r11, rcx
.Lafter_both:
    mov rcx, rax
    jrcxz 1f
    mov rcx, gs:[VFORKS]
    lea rcx, [rcx - 1]
    mov gs:[VFORKS], rcx
1:  mov rcx, [r11 + 8]
    jmp rcx

# uint32_t handler(state *rdi, frame *rsi)
shunpike_inject_handler:
    mov rax, [rsi + F_RAX]
    cmp rax, 56
    jb .Lmakes
    je .Lclone
    cmp rax, 58
    je .Lvfork
    cmp rax, 60
    je .Lends
    cmp rax, 131
    je .Lsigaltstack
    cmp rax, 157
    je .Lprctl
    cmp rax, 158
    je .Larch_prctl
    cmp rax, 317
    je .Lseccomp
    cmp rax, 435
    je .Lclone3
.Lmakes:
    mov eax, {make}
    ret

.Lprctl:
    cmp dword ptr [rsi + F_RDI], 22         # PR_SET_SECCOMP
    jne .Lmakes
    jmp .Lfilter
.Lseccomp:
    cmp dword ptr [rsi + F_RDI], 1          # others than SECCOMP_SET_MODE_* ask only
    ja .Lmakes
.Lfilter:
    mov qword ptr [rip + .Lalone], 1
    xor eax, eax
    ret

.Lends:
    xor eax, eax
    cmp qword ptr [rdi + VFORKS], 0
    jne 1f
    xchg rax, [rdi + SURPLUS]
    lock add [rip + .Lsurplus], rax
    xor eax, eax
    cmp qword ptr [rip + .Lalone], 0
    jne 1f
    push -1
    mov edi, 2                  # SIG_SETMASK
    mov rsi, rsp
    xor edx, edx
    mov r10d, 8
    mov eax, 14
    syscall
    pop rcx
    mov eax, {exit}
1:  ret

# Whether the eight bytes at rdi can be read: the kernel reads a mask before it refuses what to do with it. ZF: they can.
.Lreadable:
    cmp qword ptr [rip + .Lalone], 1
    je 1f
    push rsi
    mov rsi, rdi
    mov edi, -1
    xor edx, edx
    mov r10d, 8
    mov eax, 14
    syscall
    pop rsi
    cmp rax, -22                # EINVAL
1:  ret

.Lsigaltstack:
    push rdi
    mov rdi, [rsi + F_RDI]
    test rdi, rdi
    jz 2f
    call .Lreadable
    jne 2f
    mov rdi, [rsi + F_RDI]
    add rdi, 16
    call .Lreadable
    jne 2f
    mov rdx, [rsi + F_RDI]
    mov rdi, [rsp]
    mov rax, [rdx]
    mov rcx, [rdx + 16]
    test dword ptr [rdx + 8], 2 # SS_DISABLE
    jz 1f
    xor ecx, ecx
1:  mov [rdi + ALT_BASE], rax
    mov [rdi + ALT_SIZE], rcx
2:  pop rdi
    xor eax, eax
    ret

.Lclone3:
    push rdi
    mov rdi, [rsi + F_RDI]
    call .Lreadable
    pop rdi
    jne .Lmakes
    mov rax, [rsi + F_RDI]
    mov eax, [rax]
    jmp 1f
.Lclone:
    mov eax, [rsi + F_RDI]
1:  and eax, 0x4100             # CLONE_VFORK, CLONE_VM
    cmp eax, 0x4100
    je .Lvfork
    cmp eax, 0x100
    je .Lthread
    jmp .Lmakes

.Lvfork:
    inc qword ptr [rdi + VFORKS]
    mov eax, {vfork}
    ret

# A block for the child: one that is left over, one that another thread has left, or a new one.
.Lthread:
    cmp qword ptr [rdi + SURPLUS], 0
    je 1f
    dec qword ptr [rdi + SURPLUS]
    jmp 8f
1:  mov rax, [rip + .Lsurplus]
    test rax, rax
    jz 1f
    lea rcx, [rax - 1]
    lock cmpxchg [rip + .Lsurplus], rcx
    jne 1b
    jmp 8f
1:  push rsi
    lea rdx, [rip + .Lfree]
    lea rcx, [rdx + 8 * {slots}]
2:  xor eax, eax
    xchg [rdx], rax
    test rax, rax
    jnz 4f
    add rdx, 8
    cmp rdx, rcx
    jb 2b
    xor edi, edi
    mov esi, {block}
    mov edx, 3                  # PROT_READ, PROT_WRITE
    mov r10d, 0x4022            # MAP_PRIVATE, MAP_ANONYMOUS, MAP_NORESERVE
    mov r8, -1
    xor r9d, r9d
    mov eax, 9
    syscall
    cmp rax, -4096
    ja 9f
    push rax
    mov rdi, rax
    mov esi, {guard}
    xor edx, edx
    mov eax, 10                 # mprotect
    syscall
    pop rax
    add rax, {state_at}
4:  mov rdx, rax
    lea rdi, [rax - {frame} * ({depth} + 1)]
    mov ecx, ({frame} * ({depth} + 1) + {state}) / 8
    xor eax, eax
    rep stosq
    mov rax, rdx
    mov [rax + SELF], rax
    mov [rax + TOP], rax
    lea rcx, [rax - {frame}]
    mov [rax + FIRST], rcx
    lea rcx, [rax - {frame} * {depth}]
    mov [rax + LAST], rcx
    lea rcx, [rax - {frame} * ({depth} + 1)]
    mov [rax + STACK], rcx
    mov rdi, rax
5:  lea rdx, [rip + .Lpending]
    lea rcx, [rdx + 8 * {slots}]
6:  xor eax, eax
    lock cmpxchg [rdx], rdi
    je 7f
    add rdx, 8
    cmp rdx, rcx
    jb 6b
    mov eax, 24                 # sched_yield: so many children have not begun yet
    syscall
    jmp 5b
7:  pop rsi
8:  mov eax, {thread}
    ret
9:  pop rsi
    mov qword ptr [rsi + F_RAX], -11    # EAGAIN
    mov eax, {done}
    ret

# The program takes the GS base for itself: from here on all calls go round. The entry's first eight bytes become mov rcx, [rcx]; jmp rcx.
.Larch_prctl:
    cmp dword ptr [rsi + F_RDI], 0x1001     # ARCH_SET_GS
    jne .Lmakes
    push rsi
    lea rdi, [rip + shunpike_inject_text]
    mov esi, 4096
    mov edx, 7
    mov eax, 10
    syscall
    test rax, rax
    jnz 9b
    mov rcx, 0x909090e1ff098b48
    mov [rip + .Lentry], rcx
    lea rdi, [rip + shunpike_inject_text]
    mov esi, 4096
    mov edx, 5
    mov eax, 10
    syscall
    pop rsi
    xor eax, eax
    ret

# Where a signal may find a thread, for a library that shows the program's handlers the program's own registers: from where on, counted from
# the beginning of the text, and what holds from there on (crates/entry/src/zones.rs).
    .p2align 3
.Lzones:
    .long shunpike_inject_text - shunpike_inject_text, BEHIND_RCX
    .long .Lentry - shunpike_inject_text, ENTRY
    .long .Lentered - shunpike_inject_text, ENTERED
    .long .Lnumber - shunpike_inject_text, NUMBER
    .long .Lflags - shunpike_inject_text, FLAGS
    .long .Lleft - shunpike_inject_text, GONE
    .long .Lcount - shunpike_inject_text, FLAGS
    .long .Lsaved - shunpike_inject_text, INSIDE
    .long .Lanswered - shunpike_inject_text, LOOK
    .long .Lback - shunpike_inject_text, BACK
    .long .Lgone - shunpike_inject_text, GONE
    .long .Lothers - shunpike_inject_text, LOOK
    .long .Lkept_back - shunpike_inject_text, INSIDE
    .long .Lexit - shunpike_inject_text, NONE
    .long .Lafter_thread - shunpike_inject_text, BEHIND_RCX
    .long .Lafter_parent - shunpike_inject_text, BEHIND
    .long .Lafter_child - shunpike_inject_text, NONE
    .long .Lafter_vfork - shunpike_inject_text, BEHIND_RCX
    .long .Lafter_both - shunpike_inject_text, BEHIND
    .long shunpike_inject_handler - shunpike_inject_text, INSIDE
    .long .Lzones - shunpike_inject_text, NONE
    .long -1, NONE

    .p2align 12
shunpike_inject_end:
    .popsection
