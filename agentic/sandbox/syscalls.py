"""System calls by name with their numbers on x86-64 and aarch64 ("-": not there), from the kernel's headers.

What is in none of these tables is unknown to this version and answered with ENOSYS, as an older kernel would.
"""

from __future__ import annotations

ALLOWED = """
brk:12:214 mmap:9:222 mprotect:10:226 munmap:11:215 mremap:25:216 madvise:28:233 msync:26:227 mincore:27:232
membarrier:324:283 get_mempolicy:239:236 read:0:63 write:1:64 readv:19:65 writev:20:66 pread64:17:67 pwrite64:18:68
preadv:295:69 pwritev:296:70 preadv2:327:286 pwritev2:328:287 open:2:- creat:85:- openat:257:56 openat2:437:437
close:3:57 close_range:436:436 lseek:8:62 stat:4:- fstat:5:80 lstat:6:- newfstatat:262:79 statx:332:291 access:21:-
faccessat:269:48 faccessat2:439:439 readlink:89:- readlinkat:267:78 getdents:78:- getdents64:217:61 getcwd:79:17
chdir:80:49 fchdir:81:50 mkdir:83:- mkdirat:258:34 rmdir:84:- unlink:87:- unlinkat:263:35 rename:82:- renameat:264:38
renameat2:316:276 link:86:- linkat:265:37 symlink:88:- symlinkat:266:36 truncate:76:45 ftruncate:77:46 fsync:74:82 fdatasync:75:83 sync_file_range:277:84 fadvise64:221:223 readahead:187:213 dup:32:23
dup2:33:- dup3:292:24 flock:73:32 pipe:22:- pipe2:293:59 select:23:- pselect6:270:72 poll:7:- ppoll:271:73
epoll_create:213:- epoll_create1:291:20 epoll_ctl:233:21 epoll_wait:232:- epoll_pwait:281:22 epoll_pwait2:441:441
eventfd:284:- eventfd2:290:19 timerfd_create:283:85 timerfd_settime:286:86 timerfd_gettime:287:87 sendfile:40:71
copy_file_range:326:285 statfs:137:43 fstatfs:138:44 umask:95:166 getxattr:191:8 lgetxattr:192:9 fgetxattr:193:10
listxattr:194:11 llistxattr:195:12 flistxattr:196:13 exit:60:93 exit_group:231:94 rt_sigaction:13:134
rt_sigprocmask:14:135 rt_sigreturn:15:139 rt_sigsuspend:130:133 rt_sigtimedwait:128:137 rt_sigpending:127:136
sigaltstack:131:132 alarm:37:- setitimer:38:103 getitimer:36:102 pause:34:- nanosleep:35:101 clock_nanosleep:230:115
clock_gettime:228:113 clock_getres:229:114 gettimeofday:96:169 time:201:- getpid:39:172 gettid:186:178 getppid:110:173
getuid:102:174 geteuid:107:175 getgid:104:176 getegid:108:177 getgroups:115:158 getresuid:118:148 getresgid:120:150
getpgid:121:155 getpgrp:111:- getsid:124:156 getcpu:309:168 getrusage:98:165 times:100:153 sysinfo:99:179 uname:63:160
getrlimit:97:163 setrlimit:160:164 getpriority:140:141 sched_yield:24:124 sched_getaffinity:204:123
sched_getparam:143:121 sched_getscheduler:145:120 sched_get_priority_max:146:125 sched_get_priority_min:147:126
futex:202:98 futex_waitv:449:449 set_robust_list:273:99 set_tid_address:218:96 rseq:334:293 arch_prctl:158:-
wait4:61:260 waitid:247:95 capget:125:90 getrandom:318:278 restart_syscall:219:128 sendto:44:206 recvfrom:45:207 shutdown:48:210 getsockopt:55:209 getsockname:51:204 getpeername:52:205
"""
"""Work on memory, open files, time, the process itself. Which files can be opened is Landlock's part."""

IGNORED = """

chmod:90:- fchmod:91:52 fchmodat:268:53 utime:132:- utimes:235:- utimensat:280:88 futimesat:261:- fchmodat2:452:452
"""
"""Answered with success and not done: Landlock does not confine them, and unpacking or copying a file must not fail on them."""

DENIED = """
socket:41:198 connect:42:203 bind:49:200 listen:50:201 accept:43:202 accept4:288:242 setsockopt:54:208
sendmsg:46:211 recvmsg:47:212 sendmmsg:307:269 recvmmsg:299:243 execve:59:221 execveat:322:281 fork:57:- vfork:58:- ptrace:101:117
process_vm_readv:310:270 process_vm_writev:311:271 process_madvise:440:440 process_mrelease:448:448
memfd_create:319:279 memfd_secret:447:447 mount:165:40 umount2:166:39 mount_setattr:442:442 move_mount:429:429
open_tree:428:428 fsopen:430:430 fsconfig:431:431 fsmount:432:432 fspick:433:433 pivot_root:155:41 chroot:161:51
unshare:272:97 setns:308:268 bpf:321:280 perf_event_open:298:241 userfaultfd:323:282 io_uring_setup:425:425
io_uring_enter:426:426 io_uring_register:427:427 io_setup:206:0 io_submit:209:2 io_destroy:207:1 keyctl:250:219
add_key:248:217 request_key:249:218 kcmp:312:272 pidfd_open:434:434 pidfd_getfd:438:438 pidfd_send_signal:424:424
tkill:200:130 rt_sigqueueinfo:129:138 rt_tgsigqueueinfo:297:240 open_by_handle_at:304:- name_to_handle_at:303:-
mknod:133:- mknodat:259:33 chown:92:- fchown:93:55 lchown:94:- fchownat:260:54 setxattr:188:5 lsetxattr:189:6
fsetxattr:190:7 removexattr:197:14 lremovexattr:198:15 fremovexattr:199:16 setuid:105:146 setgid:106:144
setreuid:113:145 setregid:114:143 setresuid:117:147 setresgid:119:149 setfsuid:122:151 setfsgid:123:152
setgroups:116:159 capset:126:91 setsid:112:157 setpgid:109:154 setpriority:141:140 sched_setparam:142:118
sched_setscheduler:144:119 sched_setattr:314:274 sched_getattr:315:275 ioprio_set:251:30 ioprio_get:252:31
seccomp:317:277 landlock_create_ruleset:444:444 landlock_add_rule:445:445 landlock_restrict_self:446:446
personality:135:92 shmget:29:194 shmat:30:196 shmctl:31:195 shmdt:67:197 semget:64:190 semop:65:193 semctl:66:191
semtimedop:220:192 msgget:68:186 msgsnd:69:189 msgrcv:70:188 msgctl:71:187 mq_open:240:180 mq_unlink:241:181
mq_timedsend:242:182 mq_timedreceive:243:183 mq_notify:244:184 mq_getsetattr:245:185 inotify_init:253:-
inotify_init1:294:26 inotify_add_watch:254:27 fanotify_init:300:262 fanotify_mark:301:263 signalfd:282:-
signalfd4:289:74 timer_create:222:107 timer_settime:223:110 timer_delete:226:111 clock_settime:227:112
clock_adjtime:305:266 settimeofday:164:170 adjtimex:159:171 mlock:149:228 mlock2:325:284 mlockall:151:230
munlock:150:229 mbind:237:235 set_mempolicy:238:237 migrate_pages:256:238 move_pages:279:239 kexec_load:246:104
kexec_file_load:320:294 init_module:175:105 finit_module:313:273 delete_module:176:106 reboot:169:142 swapon:167:224
swapoff:168:225 acct:163:89 quotactl:179:60 quotactl_fd:443:443 syslog:103:116 sethostname:170:161
setdomainname:171:162 iopl:172:- ioperm:173:- modify_ldt:154:- lookup_dcookie:212:18 vhangup:153:58 nfsservctl:180:42
get_robust_list:274:100 splice:275:76 tee:276:77 vmsplice:278:75 sync:162:81 syncfs:306:267 pkey_alloc:330:289
pkey_free:331:290 pkey_mprotect:329:288 uselib:134:- ustat:136:- sysfs:139:- _sysctl:156:-
"""
"""Answered with EPERM: network, passing descriptors, programs, processes, other processes' memory and signals, namespaces, kernel interfaces."""

FILTERED = """
clone:56:220 clone3:435:435 kill:62:129 tgkill:234:131 prlimit64:302:261 sched_setaffinity:203:122 prctl:157:167
ioctl:16:29 fcntl:72:25 fallocate:285:47 socketpair:53:199
"""
"""Allowed for some arguments (seccomp.py)."""


def numbers(table: str, architecture: str) -> dict[str, int]:
    """Numbers of a table's calls on `architecture` (x86_64 or aarch64)."""
    column = {"x86_64": 1, "aarch64": 2}[architecture]
    rows = (entry.split(":") for entry in table.split())
    return {row[0]: int(row[column]) for row in rows if row[column] != "-"}
