// Tries to change what lies outside of the sandbox by system calls of its own. Prints the names of the calls that failed.

#include <dlfcn.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <netinet/in.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <unistd.h>

static void say(const char* name, long result) {
  if (result < 0) printf("%s\n", name);
}
#define TRY(name, ...) say(#name, syscall(SYS_##name, __VA_ARGS__))

int main(int, char** words) {
  const char* victim = words[1];
  pid_t other = atoi(words[2]);
  int memory = atoi(words[3]), port = atoi(words[4]), here = AT_FDCWD;
  int file = syscall(SYS_openat, here, victim, O_RDONLY);
  timespec times[2] = {};

  TRY(openat, here, victim, O_WRONLY, 0);
  TRY(mkdirat, here, "raw_folder", 0700);
  TRY(mknodat, here, "raw_pipe", S_IFIFO | 0600, 0);
  TRY(symlinkat, "victim", here, "raw_link");
  TRY(linkat, here, victim, here, "raw_second", 0);
  TRY(renameat2, here, victim, here, "raw_new", 0);
  TRY(unlinkat, here, victim, 0);
  TRY(truncate, victim, 0);
  TRY(fchmodat, here, victim, 0777);
  TRY(fchmod, file, 0777);
  TRY(fchownat, here, victim, 1, 1, 0);
  TRY(fchown, file, 1, 1);
  TRY(utimensat, here, victim, times, 0);
  TRY(setxattr, victim, "user.raw", "1", 1, 0);
  TRY(fsetxattr, file, "user.raw", "1", 1, 0);
  int flags = FS_NOATIME_FL;
  TRY(ioctl, file, FS_IOC_SETFLAGS, &flags);

  TRY(kill, other, SIGTERM);
  TRY(tgkill, other, other, SIGTERM);
  siginfo_t information = {};
  information.si_code = -1;
  TRY(rt_sigqueueinfo, other, SIGTERM, &information);
  TRY(pidfd_send_signal, (int)syscall(SYS_pidfd_open, other, 0), SIGTERM, nullptr, 0);
  rlimit limit{1, 1};
  TRY(prlimit64, other, RLIMIT_CPU, &limit, nullptr);
  TRY(setpriority, PRIO_PROCESS, other, 19);
  cpu_set_t cores;
  CPU_ZERO(&cores);
  CPU_SET(0, &cores);
  TRY(sched_setaffinity, other, sizeof cores, &cores);
  TRY(ptrace, PTRACE_ATTACH, other, 0, 0);
  char byte = 1;
  iovec local{&byte, 1}, remote{(void*)main, 1};
  TRY(process_vm_writev, other, &local, 1, &remote, 1, 0);

  sockaddr_in address{AF_INET, htons(port), {htonl(INADDR_LOOPBACK)}};
  TRY(connect, socket(AF_INET, SOCK_STREAM, 0), &address, sizeof address);
  int datagram = socket(AF_INET, SOCK_DGRAM, 0);
  TRY(sendto, datagram, "raw", 3, 0, &address, sizeof address);
  iovec data{(void*)"raw", 3};
  msghdr message{&address, sizeof address, &data, 1};
  TRY(sendmsg, datagram, &message, 0);
  mmsghdr messages{message};
  TRY(sendmmsg, datagram, &messages, 1, 0);
  sockaddr_un daemon{AF_UNIX};
  strcpy(daemon.sun_path + 1, "memlab-wall-test");
  socklen_t size = sizeof(sa_family_t) + 1 + strlen("memlab-wall-test");
  say("abstract", syscall(SYS_connect, socket(AF_UNIX, SOCK_STREAM, 0), &daemon, size));
  strcpy(daemon.sun_path, "daemon.sock");
  say("daemon", syscall(SYS_connect, socket(AF_UNIX, SOCK_STREAM, 0), &daemon, sizeof daemon));
  TRY(socket, AF_INET, SOCK_RAW, IPPROTO_ICMP);

  TRY(shmat, memory, nullptr, 0);
  char ring[120] = {};
  TRY(io_uring_setup, 8, ring);
  TRY(mount, "none", "/mnt", "tmpfs", 0, nullptr);
  TRY(unshare, CLONE_NEWUSER | CLONE_NEWNS);

  // A second C library, which no other one stands before. Static programs have none.
  if (void* second = dlmopen(LM_ID_NEWLM, "libc.so.6", RTLD_NOW))
    say("dlmopen", ((int (*)(const char*, mode_t))dlsym(second, "mkdir"))("second_folder", 0700));
  else
    printf("dlmopen\n");
  char shell[] = "/bin/sh", option[] = "-c", script[] = "echo raw > raw_file", *command[] = {shell, option, script, nullptr};
  char* none[] = {nullptr};
  fflush(stdout);
  unsetenv("LD_PRELOAD"), clearenv();
  syscall(SYS_execve, "/bin/sh", command, none);
}
