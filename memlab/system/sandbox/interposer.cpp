// Stands between a program and the C library (LD_PRELOAD), and keeps the program's effects in a scratch folder.
//
// Every function here has the name of a function of the C library. It changes the path, or refuses, and calls the real
// one. So it holds for C++, Rust and Python alike and for every child process, but not for system calls that a program
// makes without the C library: static programs (Go), io_uring, programs with set-user-ID.
//
// Variables:
//   MEMLAB_SANDBOX          the scratch folder; report/refused there gets a line for each refused connection or signal
//   MEMLAB_SANDBOX_NETWORK  "open": connections are not refused
//   MEMLAB_SANDBOX_KEEP     set: files are redirected too, and signals to other processes are refused. Its value is the
//                           folder that the program may really change
//
// Files: "upper" in the scratch folder mirrors the machine's root. A folder there is complete (it holds all that the
// program sees in that folder) or a mere stand-in for the real folder; stand-ins, for files also, have the set-user-ID
// bit. A folder becomes complete, filled with stand-ins, when the first entry is made or removed in it, and a file is
// copied when it is first changed. What is absent from a complete folder was deleted.

#include <arpa/inet.h>
#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <limits.h>
#include <netdb.h>
#include <netinet/in.h>
#include <signal.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/un.h>
#include <sys/xattr.h>
#include <unistd.h>
#include <utime.h>

#include <cerrno>
#include <string>
#include <string_view>
#include <vector>

#define API extern "C" __attribute__((visibility("default")))
#define REAL(name) ((decltype(&::name))real_function<__COUNTER__>(#name))
#define REAL_AS(type, name) ((type)real_function<__COUNTER__>(name))

namespace {

template <int N>
void* real_function(const char* name) {
  static void* found = dlsym(RTLD_NEXT, name);
  return found;
}

const char* variable(const char* name) {
  const char* value = getenv(name);
  return value && *value ? value : nullptr;
}

// The settings are read once, before the program can change its environment.
struct Settings {
  std::string scratch, upper, keep;
  bool files = false, closed = false;
  std::vector<std::string> variables;  // of every child process

  Settings() {
    const char* folder = variable("MEMLAB_SANDBOX");
    if (!folder) return;
    scratch = folder;
    upper = scratch + "/upper";
    const char* kept = variable("MEMLAB_SANDBOX_KEEP");
    files = kept != nullptr;
    keep = kept ? kept : "";
    const char* network = variable("MEMLAB_SANDBOX_NETWORK");
    closed = !network || strcmp(network, "open") != 0;
    for (const char* name :
         {"LD_PRELOAD", "MEMLAB_SANDBOX", "MEMLAB_SANDBOX_KEEP", "MEMLAB_SANDBOX_NETWORK", "MEMLAB_LAUNCH"})
      if (const char* value = variable(name)) variables.push_back(std::string(name) + "=" + value);
  }
};

const Settings& settings() {
  static const Settings* found = new Settings;  // never destroyed: other destructors may still open files
  return *found;
}
__attribute__((constructor)) void read_settings() { settings(); }

struct KeepErrno {
  int before = errno;
  ~KeepErrno() { errno = before; }
};

bool is_below(std::string_view path, std::string_view folder) {
  return !folder.empty() && path.substr(0, folder.size()) == folder &&
         (path.size() == folder.size() || path[folder.size()] == '/');
}

// ----------------------------------------- paths

enum class State {
  Kept,    // the program may change it: the kept folder, the scratch folder, devices
  Lower,   // as on the machine
  Shared,  // as on the machine, with a stand-in in UPPER
  Own,     // the program's own, in UPPER
  Absent   // deleted, or never there, in a complete folder
};

struct Place {
  std::string path;  // as the program sees it, without symbolic links
  State state = State::Lower;
  bool own() const { return state == State::Own || state == State::Absent; }
  std::string upper() const { return settings().upper + path; }
  std::string real() const { return own() ? upper() : path.empty() ? "/" : path; }
};

bool is_stand_in(const struct stat& found) {
  return (found.st_mode & S_ISUID) && (S_ISDIR(found.st_mode) || S_ISREG(found.st_mode));
}

// glibc before 2.33 has no functions stat and mknod, but __xstat and __xmknod: the system calls are in all.
bool stat_of(const std::string& path, struct stat& found, int flags) {
  return syscall(SYS_newfstatat, AT_FDCWD, path.c_str(), &found, flags) == 0;
}

bool lstat_of(const std::string& path, struct stat& found) { return stat_of(path, found, AT_SYMLINK_NOFOLLOW); }

State state_in(const Place& parent, const std::string& path) {
  const auto& its = settings();
  if (is_below(path, its.keep) || is_below(path, its.scratch) || is_below(path, "/proc") || is_below(path, "/dev") ||
      is_below(path, "/sys"))
    return State::Kept;
  if (parent.state != State::Shared && parent.state != State::Own) return parent.state;
  struct stat found;
  if (lstat_of(its.upper + path, found)) return is_stand_in(found) ? State::Shared : State::Own;
  return parent.state == State::Own ? State::Absent : State::Lower;
}

std::string without_upper(std::string path) {
  if (!is_below(path, settings().upper)) return path;
  path.erase(0, settings().upper.size());
  return path.empty() ? "/" : path;
}

std::string link_of(const std::string& path) {
  char target[PATH_MAX];
  ssize_t size = REAL(readlink)(path.c_str(), target, sizeof target);
  return size < 0 ? "" : std::string(target, size);
}

std::string folder_of(int descriptor) {
  if (descriptor != AT_FDCWD) return without_upper(link_of("/proc/self/fd/" + std::to_string(descriptor)));
  char here[PATH_MAX];
  return REAL(getcwd)(here, sizeof here) ? without_upper(here) : "/";
}

// Finds a path in what the program sees. `follow`: also a symbolic link that is its last part.
Place find(int descriptor, const char* given, bool follow = true) {
  KeepErrno keep_errno;
  std::string rest = *given == '/' ? given : folder_of(descriptor) + "/" + given;
  Place root{"", State::Shared};
  struct stat found;
  if (lstat_of(settings().upper, found) && !is_stand_in(found)) root.state = State::Own;
  std::vector<Place> here{root};
  for (int links = 0; !rest.empty();) {
    size_t from = rest.find_first_not_of('/');
    if (from == std::string::npos) break;
    size_t to = rest.find('/', from);
    std::string part = rest.substr(from, to == std::string::npos ? to : to - from);
    rest = to == std::string::npos ? "" : rest.substr(to);
    if (part == ".") continue;
    if (part == "..") {
      if (here.size() > 1) here.pop_back();
      continue;
    }
    Place next{here.back().path + "/" + part};
    next.state = state_in(here.back(), next.path);
    if (next.state == State::Kept && !is_below(next.path, settings().keep) && !is_below(next.path, settings().scratch))
      return {next.path + rest, State::Kept};  // links of /proc/self/fd are no paths
    if (follow || !rest.empty()) {
      std::string target = link_of(next.real());
      if (!target.empty()) {
        if (++links > 40) return {settings().scratch + "/loop" + rest, State::Kept};  // a link to itself: ELOOP
        if (target[0] == '/') here.resize(1);
        rest = target + (rest.empty() ? "" : "/" + rest);
        continue;
      }
    }
    here.push_back(next);
  }
  return here.back();
}

Place parent_of(const Place& place) {
  return find(AT_FDCWD, (place.path.substr(0, place.path.rfind('/')) + "/").c_str());
}

// ----------------------------------------- changes

struct Lock {
  int file = REAL(open)((settings().scratch + "/lock").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  Lock() { flock(file, LOCK_EX); }
  ~Lock() {
    flock(file, LOCK_UN);  // closing it is not enough: a child that was forked meanwhile holds the same lock
    REAL(close)(file);
  }
};

void make_stand_in(const std::string& path, const std::string& upper, mode_t type) {
  if (S_ISDIR(type))
    REAL(mkdir)(upper.c_str(), 0700), REAL(chmod)(upper.c_str(), S_ISUID | 0700);
  else if (S_ISLNK(type))
    REAL(symlink)(link_of(path).c_str(), upper.c_str());
  else
    syscall(SYS_mknodat, AT_FDCWD, upper.c_str(), S_IFREG | S_ISUID, 0), REAL(chmod)(upper.c_str(), S_ISUID);
}

void make_stand_ins(const std::string& folder) {
  for (size_t end = folder.find('/', 1); !folder.empty(); end = folder.find('/', end + 1)) {
    std::string each = folder.substr(0, end);
    struct stat there;
    if (!lstat_of(settings().upper + each, there)) make_stand_in(each, settings().upper + each, S_IFDIR);
    if (end == std::string::npos) break;
  }
}

// Makes a folder complete, unless its user may not list it: then it stays a stand-in, with what the program made in it.
void fill(Place& folder, const struct stat& found) {
  Lock lock;
  make_stand_ins(folder.path);
  struct stat there;
  std::string path = folder.real();
  if (lstat_of(folder.upper(), there) && is_stand_in(there)) {
    DIR* entries = REAL(opendir)(path.c_str());
    if (!entries) return;
    while (dirent* entry = REAL(readdir)(entries)) {
      std::string name = entry->d_name, upper = folder.upper() + "/" + name;
      struct stat each;
      if (name == "." || name == ".." || lstat_of(upper, there) || !lstat_of(path + "/" + name, each)) continue;
      make_stand_in(path + "/" + name, upper, each.st_mode & S_IFMT);
    }
    REAL(closedir)(entries);
    REAL(chmod)(folder.upper().c_str(), found.st_mode & 07777 & ~S_ISUID);
  }
  folder.state = State::Own;
}

// Prepares a folder for an entry that is made or removed. Returns false if the program may not change the real folder:
// the kernel then says so.
bool complete(Place& folder) {
  if (folder.own() || folder.state == State::Kept) return true;
  KeepErrno keep_errno;
  struct stat found;
  std::string path = folder.real();
  if (!lstat_of(path, found) || !S_ISDIR(found.st_mode) || REAL(access)(path.c_str(), W_OK | X_OK)) return false;
  fill(folder, found);
  return true;
}

void copy(const std::string& from, const std::string& to, const struct stat& found, bool content) {
  int source = REAL(open)(from.c_str(), O_RDONLY | O_CLOEXEC);
  int target = REAL(open)(to.c_str(), O_WRONLY | O_TRUNC | O_CLOEXEC);
  while (content && sendfile(target, source, nullptr, 1 << 30) > 0) {
  }
  struct timespec times[] = {found.st_atim, found.st_mtim};
  REAL(futimens)(target, times);
  REAL(close)(source);
  REAL(close)(target);
}

// Whether the program may write to a file or folder, or, as the owner of a read-only one, change its attributes.
bool may_change(const std::string& path, const struct stat& found) {
  return REAL(access)(path.c_str(), W_OK) == 0 || (errno == EACCES && found.st_uid == geteuid());
}

// Makes what exists the program's own. Returns false if the program may not change it: the kernel then says so.
bool take(Place& place, bool content = true) {
  if (place.own() || place.state == State::Kept) return true;
  KeepErrno keep_errno;
  struct stat found;
  if (!lstat_of(place.real(), found)) return false;
  bool is_file = S_ISREG(found.st_mode), is_folder = S_ISDIR(found.st_mode), is_link = S_ISLNK(found.st_mode);
  if (!is_link && !((is_file || is_folder) && may_change(place.real(), found))) return false;
  place.state = State::Own;
  if (is_folder) {
    Place folder{place.path};
    fill(folder, found);
    return true;
  }
  Lock lock;
  make_stand_ins(place.path.substr(0, place.path.rfind('/')));
  struct stat there;
  if (!lstat_of(place.upper(), there)) {
    make_stand_in(place.path, place.upper(), found.st_mode & S_IFMT);
    lstat_of(place.upper(), there);
  }
  if (is_file && is_stand_in(there)) {
    REAL(chmod)(place.upper().c_str(), S_ISUID | 0600);
    copy(place.path, place.upper(), found, content);
    REAL(chmod)(place.upper().c_str(), found.st_mode & 07777 & ~S_ISUID);
  }
  return true;
}

bool exists(const Place& place) {
  struct stat found;
  return lstat_of(place.real(), found);
}

// The arguments of the real function.
struct Real {
  int at = AT_FDCWD;
  const char* given = nullptr;
  std::string path;
  Real(int at, const char* given) : at(at), given(given) {}
  Real(std::string path) : path(std::move(path)) {}
  operator const char*() const { return path.empty() ? given : path.c_str(); }
};

bool as_it_is(const char* path) { return !settings().files || !path || !*path; }

Real to_read(int at, const char* path, bool follow = true) {
  if (as_it_is(path)) return {at, path};
  return find(at, path, follow).real();
}

// An entry that is to be made.
Real to_make(int at, const char* path, bool follow = false) {
  if (as_it_is(path)) return {at, path};
  Place place = find(at, path, follow);
  if (place.state == State::Kept) return place.real();
  Place parent = parent_of(place);
  return complete(parent) ? place.upper() : place.real();
}

// A file or folder whose content or attributes are to be changed.
Real to_change(int at, const char* path, bool follow = true) {
  if (as_it_is(path)) return {at, path};
  Place place = find(at, path, follow);
  take(place);
  return place.real();
}

Real to_remove(int at, const char* path) {
  if (as_it_is(path)) return {at, path};
  Place place = find(at, path, false);
  struct stat found;
  if (!lstat_of(place.real(), found)) return place.real();
  if (S_ISDIR(found.st_mode)) complete(place);  // it may have entries: the real function says so
  return to_make(at, path);
}

Real to_open(int at, const char* path, int flags) {
  if (as_it_is(path)) return {at, path};
  bool writes = (flags & O_ACCMODE) != O_RDONLY || (flags & (O_CREAT | O_TRUNC));
  bool is_new = (flags & (O_CREAT | O_EXCL)) == (O_CREAT | O_EXCL);
  Place place = find(at, path, !(flags & O_NOFOLLOW) && !is_new);
  if (!writes || (flags & O_PATH)) return place.real();
  if (!exists(place) && (flags & O_CREAT)) return to_make(at, path, !(flags & O_NOFOLLOW) && !is_new);
  if (!is_new) take(place, !(flags & O_TRUNC));
  return place.real();
}

int flags_of(const char* mode) {
  int flags = *mode == 'r' ? O_RDONLY : *mode == 'w' ? O_WRONLY | O_CREAT | O_TRUNC : O_WRONLY | O_CREAT;
  return strchr(mode, '+') ? (flags & ~O_ACCMODE) | O_RDWR : flags;
}

// Whether an open file is the machine's own, so that its attributes must not change.
bool is_outside(int descriptor) {
  if (!settings().files) return false;
  KeepErrno keep_errno;
  std::string path = link_of("/proc/self/fd/" + std::to_string(descriptor));
  return path[0] == '/' && !is_below(path, settings().scratch) && !is_below(path, settings().keep) &&
         !is_below(path, "/dev");
}

// ----------------------------------------- network, signals

void refused(const std::string& what) {
  KeepErrno keep_errno;
  std::string line = what + "\n";
  std::string report = settings().scratch + "/report/refused";
  int file = REAL(open)(report.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
  if (write(file, line.data(), line.size()) < 0) {
  }
  REAL(close)(file);
}

std::string port_file(int port) { return settings().scratch + "/report/port" + std::to_string(port); }

std::string name_of(const sockaddr* address) {
  char text[INET6_ADDRSTRLEN] = "";
  if (address->sa_family == AF_INET) {
    auto* in = (const sockaddr_in*)address;
    inet_ntop(AF_INET, &in->sin_addr, text, sizeof text);
    return std::string(text) + ":" + std::to_string(ntohs(in->sin_port));
  }
  auto* in = (const sockaddr_in6*)address;
  inet_ntop(AF_INET6, &in->sin6_addr, text, sizeof text);
  return std::string("[") + text + "]:" + std::to_string(ntohs(in->sin6_port));
}

int port_of(const sockaddr* address) {
  bool is_4 = address->sa_family == AF_INET;
  return ntohs(is_4 ? ((const sockaddr_in*)address)->sin_port : ((const sockaddr_in6*)address)->sin6_port);
}

bool is_loopback(const sockaddr* address) {
  if (address->sa_family == AF_INET) {
    uint32_t number = ntohl(((const sockaddr_in*)address)->sin_addr.s_addr);
    return number >> 24 == 127 || number == 0;
  }
  const in6_addr& number = ((const sockaddr_in6*)address)->sin6_addr;
  return IN6_IS_ADDR_LOOPBACK(&number) || IN6_IS_ADDR_UNSPECIFIED(&number) ||
         (IN6_IS_ADDR_V4MAPPED(&number) && number.s6_addr[12] == 127);
}

// Notes that a port is the program's own.
void note_port(int socket) {
  sockaddr_storage own;
  socklen_t size = sizeof own;
  if (!settings().closed || getsockname(socket, (sockaddr*)&own, &size)) return;
  if (own.ss_family == AF_INET || own.ss_family == AF_INET6)
    REAL(close)(REAL(open)(port_file(port_of((sockaddr*)&own)).c_str(), O_CREAT | O_WRONLY | O_CLOEXEC, 0600));
}

// Returns 0 if a connection stays among the program's own processes, or else says so and returns the error. On a
// network of its own, the kernel refuses what the program does not listen on.
int refusal(const sockaddr* address) {
  if (!address || !settings().closed) return 0;
  if (address->sa_family != AF_INET && address->sa_family != AF_INET6) return 0;
  int port = port_of(address);
  if (is_loopback(address) && REAL(access)(port_file(port).c_str(), F_OK) == 0) return 0;
  if (port != 0) refused("connection to " + name_of(address));  // port 0: only asks for a route
  return !is_loopback(address) ? ENETUNREACH : settings().files ? ECONNREFUSED : 0;
}

bool is_this_machine(const char* host) {
  char own[HOST_NAME_MAX + 1] = "", address[sizeof(in6_addr)];
  gethostname(own, sizeof own);
  return !host || !*host || !strcmp(host, own) || !strncmp(host, "localhost", 9) || strchr(host, ':') ||
         inet_pton(AF_INET, host, address) == 1;
}

std::string content_of(const std::string& path) {
  std::string found;
  int file = REAL(open)(path.c_str(), O_RDONLY | O_CLOEXEC);
  char piece[4096];
  for (ssize_t size; file >= 0 && (size = read(file, piece, sizeof piece)) > 0;) found.append(piece, size);
  REAL(close)(file);
  return found;
}

// Whether a process is one of the program's: by its variables, which a process that has ended no longer has, or as a
// descendant of this process.
bool is_ours(pid_t process) {
  std::string wanted = "MEMLAB_SANDBOX=" + settings().scratch;
  if (content_of("/proc/" + std::to_string(process) + "/environ").find(wanted) != std::string::npos) return true;
  while (process > 1 && process != getpid()) {
    std::string status = content_of("/proc/" + std::to_string(process) + "/stat");
    if (status.empty()) return true;  // it is gone: the kernel says so
    int parent = 0;
    sscanf(status.c_str() + status.rfind(')'), ") %*c %d", &parent);
    process = parent;
  }
  return process == getpid();
}

// A Unix socket's address with the real path, which is shorter than the limit of sockaddr_un only by way of a link.
struct UnixAddress {
  sockaddr_un real;
  const sockaddr* address;
  socklen_t size;
  std::string link;

  UnixAddress(const sockaddr* given, socklen_t length, const std::string& path) : address(given), size(length) {
    if (path.empty()) return;
    real.sun_family = AF_UNIX;
    std::string name = path;
    if (name.size() >= sizeof real.sun_path) {
      size_t slash = name.rfind('/');
      int folder = REAL(open)(name.substr(0, slash).c_str(), O_PATH | O_CLOEXEC);
      name = "/proc/self/fd/" + std::to_string(folder) + name.substr(slash);
      descriptor = folder;
    }
    strncpy(real.sun_path, name.c_str(), sizeof real.sun_path - 1);
    real.sun_path[sizeof real.sun_path - 1] = 0;
    address = (const sockaddr*)&real;
    size = sizeof real;
  }
  ~UnixAddress() {
    if (descriptor >= 0) REAL(close)(descriptor);
  }
  int descriptor = -1;
};

const char* unix_path(const sockaddr* address, socklen_t size) {
  bool named = settings().files && address && address->sa_family == AF_UNIX && size > sizeof(sa_family_t);
  const char* path = named ? ((const sockaddr_un*)address)->sun_path : "";
  return *path ? path : nullptr;
}

// Returns 0 if the program may send to an address, with the real path of a Unix socket of its own in `path`. Or else
// returns the error, and says so where somebody of the machine listens.
int refusal_at(const sockaddr* address, socklen_t size, std::string& path) {
  if (int error = refusal(address)) return error;
  const char* given = unix_path(address, size);
  if (!given) return 0;
  Place place = find(AT_FDCWD, given);
  if (place.own() || place.state == State::Kept) {
    path = place.real();
    return 0;
  }
  if (!exists(place)) return ENOENT;
  refused("connection to " + place.path);
  return ECONNREFUSED;
}

// A message with the real address.
struct Message {
  std::string path;
  int error;
  UnixAddress address;
  msghdr real;
  explicit Message(const msghdr& given)
      : error(refusal_at((const sockaddr*)given.msg_name, given.msg_namelen, path)),
        address((const sockaddr*)given.msg_name, given.msg_namelen, path),
        real(given) {
    real.msg_name = (void*)address.address;
    real.msg_namelen = address.size;
  }
};

bool is_refused_name(const char* host) {
  if (!settings().closed || is_this_machine(host)) return false;
  refused("connection to " + std::string(host));
  return true;
}

std::vector<char*> with_variables(char* const* environment) {
  std::vector<char*> all;
  for (; environment && *environment; environment++) {
    bool ours = false;
    for (const auto& each : settings().variables) ours |= !strncmp(*environment, each.c_str(), each.find('=') + 1);
    if (!ours) all.push_back(*environment);
  }
  for (const auto& each : settings().variables) all.push_back(const_cast<char*>(each.c_str()));
  all.push_back(nullptr);
  return all;
}

}  // namespace

// ----------------------------------------- functions: files

#define MODE_AFTER(last)                                            \
  mode_t mode = 0;                                                  \
  if (flags & (O_CREAT | O_TMPFILE)) {                              \
    va_list rest;                                                   \
    va_start(rest, last);                                           \
    mode = va_arg(rest, mode_t);                                    \
    va_end(rest);                                                   \
  }
#define HERE AT_FDCWD

API int open(const char* path, int flags, ...) {
  MODE_AFTER(flags)
  return REAL(open)(to_open(HERE, path, flags), flags, mode);
}
API int open64(const char* path, int flags, ...) {
  MODE_AFTER(flags)
  return REAL(open64)(to_open(HERE, path, flags), flags, mode);
}
API int openat(int at, const char* path, int flags, ...) {
  MODE_AFTER(flags)
  auto to = to_open(at, path, flags);
  return REAL(openat)(to.at, to, flags, mode);
}
API int openat64(int at, const char* path, int flags, ...) {
  MODE_AFTER(flags)
  auto to = to_open(at, path, flags);
  return REAL(openat64)(to.at, to, flags, mode);
}
// What programs call that were compiled with _FORTIFY_SOURCE.
API int __open_2(const char* path, int flags) { return open(path, flags); }
API int __open64_2(const char* path, int flags) { return open64(path, flags); }
API int __openat_2(int at, const char* path, int flags) { return openat(at, path, flags); }
API int __openat64_2(int at, const char* path, int flags) { return openat64(at, path, flags); }

API int creat(const char* path, mode_t mode) { return open(path, O_CREAT | O_WRONLY | O_TRUNC, mode); }
API int creat64(const char* path, mode_t mode) { return open64(path, O_CREAT | O_WRONLY | O_TRUNC, mode); }
API FILE* fopen(const char* path, const char* mode) { return REAL(fopen)(to_open(HERE, path, flags_of(mode)), mode); }
API FILE* fopen64(const char* path, const char* mode) {
  return REAL(fopen64)(to_open(HERE, path, flags_of(mode)), mode);
}
API FILE* freopen(const char* path, const char* mode, FILE* file) {
  return REAL(freopen)(to_open(HERE, path, flags_of(mode)), mode, file);
}
API FILE* freopen64(const char* path, const char* mode, FILE* file) {
  return REAL(freopen64)(to_open(HERE, path, flags_of(mode)), mode, file);
}

API int stat(const char* path, struct stat* found) { return REAL(stat)(to_read(HERE, path), found); }
API int stat64(const char* path, struct stat64* found) { return REAL(stat64)(to_read(HERE, path), found); }
API int lstat(const char* path, struct stat* found) { return REAL(lstat)(to_read(HERE, path, false), found); }
API int lstat64(const char* path, struct stat64* found) { return REAL(lstat64)(to_read(HERE, path, false), found); }
API int fstatat(int at, const char* path, struct stat* found, int flags) {
  auto to = to_read(at, path, !(flags & AT_SYMLINK_NOFOLLOW));
  return REAL(fstatat)(to.at, to, found, flags);
}
API int fstatat64(int at, const char* path, struct stat64* found, int flags) {
  auto to = to_read(at, path, !(flags & AT_SYMLINK_NOFOLLOW));
  return REAL(fstatat64)(to.at, to, found, flags);
}
API int statx(int at, const char* path, int flags, unsigned mask, struct statx* found) {
  auto to = to_read(at, path, !(flags & AT_SYMLINK_NOFOLLOW));
  return REAL(statx)(to.at, to, flags, mask, found);
}
// What programs call that were compiled with glibc before 2.33.
#define OLD_STAT(name, follow)                                                                        \
  API int name(int version, const char* path, void* found) {                                          \
    using Function = int (*)(int, const char*, void*);                                                \
    return REAL_AS(Function, #name)(version, to_read(HERE, path, follow), found);                     \
  }
OLD_STAT(__xstat, true)
OLD_STAT(__xstat64, true)
OLD_STAT(__lxstat, false)
OLD_STAT(__lxstat64, false)
#define OLD_STAT_AT(name)                                                                             \
  API int name(int version, int at, const char* path, void* found, int flags) {                       \
    using Function = int (*)(int, int, const char*, void*, int);                                      \
    auto to = to_read(at, path, !(flags & AT_SYMLINK_NOFOLLOW));                                      \
    return REAL_AS(Function, #name)(version, to.at, to, found, flags);                                \
  }
OLD_STAT_AT(__fxstatat)
OLD_STAT_AT(__fxstatat64)

API int access(const char* path, int mode) { return REAL(access)(to_read(HERE, path), mode); }
API int eaccess(const char* path, int mode) { return REAL(eaccess)(to_read(HERE, path), mode); }
API int euidaccess(const char* path, int mode) { return REAL(euidaccess)(to_read(HERE, path), mode); }
API int faccessat(int at, const char* path, int mode, int flags) {
  auto to = to_read(at, path, !(flags & AT_SYMLINK_NOFOLLOW));
  return REAL(faccessat)(to.at, to, mode, flags);
}
API ssize_t readlink(const char* path, char* target, size_t size) {
  return REAL(readlink)(to_read(HERE, path, false), target, size);
}
API ssize_t readlinkat(int at, const char* path, char* target, size_t size) {
  auto to = to_read(at, path, false);
  return REAL(readlinkat)(to.at, to, target, size);
}
API DIR* opendir(const char* path) { return REAL(opendir)(to_read(HERE, path)); }
API int chdir(const char* path) { return REAL(chdir)(to_read(HERE, path)); }
API int statfs(const char* path, struct statfs* found) { return REAL(statfs)(to_read(HERE, path), found); }
API int statfs64(const char* path, struct statfs64* found) { return REAL(statfs64)(to_read(HERE, path), found); }
API int statvfs(const char* path, struct statvfs* found) { return REAL(statvfs)(to_read(HERE, path), found); }
API int statvfs64(const char* path, struct statvfs64* found) { return REAL(statvfs64)(to_read(HERE, path), found); }
API ssize_t getxattr(const char* path, const char* name, void* value, size_t size) {
  return REAL(getxattr)(to_read(HERE, path), name, value, size);
}
API ssize_t listxattr(const char* path, char* names, size_t size) {
  return REAL(listxattr)(to_read(HERE, path), names, size);
}
namespace {
__attribute__((noinline)) void* dlopen_there(const char* path, int flags) {
  return REAL(dlopen)(to_read(HERE, path), flags);
}
}  // namespace
API void* dlopen(const char* path, int flags) {
  if (!as_it_is(path) && strchr(path, '/')) return dlopen_there(path, flags);
  auto* real = REAL(dlopen);
  return real(path, flags);  // compiled to a jump: dlopen(3) searches the RUNPATH of the library that it returns to
}

API char* getcwd(char* buffer, size_t size) {
  char here[PATH_MAX];
  if (!settings().files) return REAL(getcwd)(buffer, size);
  if (!REAL(getcwd)(here, sizeof here)) return nullptr;
  std::string seen = without_upper(here);
  if (buffer && size <= seen.size()) {
    errno = ERANGE;
    return nullptr;
  }
  if (!buffer) buffer = (char*)malloc(size > seen.size() ? size : seen.size() + 1);
  return strcpy(buffer, seen.c_str());
}
API char* get_current_dir_name() { return getcwd(nullptr, 0); }
API char* realpath(const char* path, char* resolved) {
  if (as_it_is(path)) return REAL(realpath)(path, resolved);
  Place place = find(HERE, path);
  if (place.state == State::Kept) return REAL(realpath)(place.real().c_str(), resolved);
  struct stat found;
  if (!stat_of(place.real(), found, 0)) return nullptr;
  if (!resolved) resolved = (char*)malloc(PATH_MAX);
  return strcpy(resolved, place.path.empty() ? "/" : place.path.c_str());
}
API char* __realpath_chk(const char* path, char* resolved, size_t) { return realpath(path, resolved); }
API char* canonicalize_file_name(const char* path) { return realpath(path, nullptr); }

API int mkdir(const char* path, mode_t mode) { return REAL(mkdir)(to_make(HERE, path), mode); }
API int mkdirat(int at, const char* path, mode_t mode) {
  auto to = to_make(at, path);
  return REAL(mkdirat)(to.at, to, mode);
}
API int mkfifo(const char* path, mode_t mode) { return REAL(mkfifo)(to_make(HERE, path), mode); }
API int mkfifoat(int at, const char* path, mode_t mode) {
  auto to = to_make(at, path);
  return REAL(mkfifoat)(to.at, to, mode);
}
API int mknod(const char* path, mode_t mode, dev_t device) { return REAL(mknod)(to_make(HERE, path), mode, device); }
API int mknodat(int at, const char* path, mode_t mode, dev_t device) {
  auto to = to_make(at, path);
  return REAL(mknodat)(to.at, to, mode, device);
}
API int symlink(const char* target, const char* path) { return REAL(symlink)(target, to_make(HERE, path)); }
API int symlinkat(const char* target, int at, const char* path) {
  auto to = to_make(at, path);
  return REAL(symlinkat)(target, to.at, to);
}
API int link(const char* from, const char* path) {
  return REAL(link)(to_change(HERE, from, false), to_make(HERE, path));
}
API int linkat(int from_at, const char* from, int at, const char* path, int flags) {
  auto source = to_change(from_at, from, flags & AT_SYMLINK_FOLLOW);
  auto to = to_make(at, path);
  return REAL(linkat)(source.at, source, to.at, to, flags);
}

API int unlink(const char* path) { return REAL(unlink)(to_remove(HERE, path)); }
API int rmdir(const char* path) { return REAL(rmdir)(to_remove(HERE, path)); }
API int remove(const char* path) { return REAL(remove)(to_remove(HERE, path)); }
API int unlinkat(int at, const char* path, int flags) {
  auto to = to_remove(at, path);
  return REAL(unlinkat)(to.at, to, flags);
}

API int renameat2(int from_at, const char* from, int at, const char* path, unsigned flags) {
  if (as_it_is(from) || as_it_is(path)) return REAL(renameat2)(from_at, from, at, path, flags);
  Place source = find(from_at, from, false);
  struct stat found;
  if (!source.own() && source.state != State::Kept && lstat_of(source.real(), found) && S_ISDIR(found.st_mode)) {
    errno = EXDEV;  // as in an overlay of the kernel: the caller copies
    return -1;
  }
  take(source);
  to_remove(at, path);  // what is replaced has a stand-in then
  return REAL(renameat2)(HERE, to_remove(from_at, from), HERE, to_make(at, path), flags);
}
API int rename(const char* from, const char* path) {
  return settings().files ? renameat2(HERE, from, HERE, path, 0) : REAL(rename)(from, path);
}
API int renameat(int from_at, const char* from, int at, const char* path) {
  return settings().files ? renameat2(from_at, from, at, path, 0) : REAL(renameat)(from_at, from, at, path);
}

API int truncate(const char* path, off_t size) { return REAL(truncate)(to_change(HERE, path), size); }
API int truncate64(const char* path, off64_t size) { return REAL(truncate64)(to_change(HERE, path), size); }
API int chmod(const char* path, mode_t mode) { return REAL(chmod)(to_change(HERE, path), mode); }
API int fchmodat(int at, const char* path, mode_t mode, int flags) {
  auto to = to_change(at, path, !(flags & AT_SYMLINK_NOFOLLOW));
  return REAL(fchmodat)(to.at, to, mode, flags);
}
API int chown(const char* path, uid_t user, gid_t group) { return REAL(chown)(to_change(HERE, path), user, group); }
API int lchown(const char* path, uid_t user, gid_t group) {
  return REAL(lchown)(to_change(HERE, path, false), user, group);
}
API int fchownat(int at, const char* path, uid_t user, gid_t group, int flags) {
  auto to = to_change(at, path, !(flags & AT_SYMLINK_NOFOLLOW));
  return REAL(fchownat)(to.at, to, user, group, flags);
}
API int utime(const char* path, const struct utimbuf* times) { return REAL(utime)(to_change(HERE, path), times); }
API int utimes(const char* path, const struct timeval* times) { return REAL(utimes)(to_change(HERE, path), times); }
API int lutimes(const char* path, const struct timeval* times) {
  return REAL(lutimes)(to_change(HERE, path, false), times);
}
API int utimensat(int at, const char* path, const struct timespec* times, int flags) {
  auto to = to_change(at, path, !(flags & AT_SYMLINK_NOFOLLOW));
  return REAL(utimensat)(to.at, to, times, flags);
}
API int setxattr(const char* path, const char* name, const void* value, size_t size, int flags) {
  return REAL(setxattr)(to_change(HERE, path), name, value, size, flags);
}
API int lsetxattr(const char* path, const char* name, const void* value, size_t size, int flags) {
  return REAL(lsetxattr)(to_change(HERE, path, false), name, value, size, flags);
}
API int removexattr(const char* path, const char* name) { return REAL(removexattr)(to_change(HERE, path), name); }
API int lremovexattr(const char* path, const char* name) {
  return REAL(lremovexattr)(to_change(HERE, path, false), name);
}
API int fchmod(int file, mode_t mode) { return is_outside(file) ? 0 : REAL(fchmod)(file, mode); }
API int fchown(int file, uid_t user, gid_t group) { return is_outside(file) ? 0 : REAL(fchown)(file, user, group); }
API int futimens(int file, const struct timespec* times) { return is_outside(file) ? 0 : REAL(futimens)(file, times); }
API int futimes(int file, const struct timeval* times) { return is_outside(file) ? 0 : REAL(futimes)(file, times); }
API int fsetxattr(int file, const char* name, const void* value, size_t size, int flags) {
  return is_outside(file) ? 0 : REAL(fsetxattr)(file, name, value, size, flags);
}
API int fremovexattr(int file, const char* name) { return is_outside(file) ? 0 : REAL(fremovexattr)(file, name); }

// Temporary names: the real function fills in the last part of the name.
#define TEMPORARY(result, name, parameters, ...)                                      \
  API result name parameters {                                                        \
    if (!settings().files) return REAL(name)(__VA_ARGS__);                            \
    char* given = pattern;                                                            \
    std::string path = (const char*)to_make(HERE, given);                             \
    pattern = path.data();                                                            \
    result made = REAL(name)(__VA_ARGS__);                                            \
    strcpy(strrchr(given, '/') ? strrchr(given, '/') : given,                         \
           strrchr(pattern, '/') + (strrchr(given, '/') ? 0 : 1));                    \
    return decltype(made)(given_or(made, given));                                     \
  }
namespace {
int given_or(int descriptor, char*) { return descriptor; }
char* given_or(char* made, char* given) { return made ? given : nullptr; }
}  // namespace
TEMPORARY(int, mkstemp, (char* pattern), pattern)
TEMPORARY(int, mkstemp64, (char* pattern), pattern)
TEMPORARY(int, mkostemp, (char* pattern, int flags), pattern, flags)
TEMPORARY(int, mkostemp64, (char* pattern, int flags), pattern, flags)
TEMPORARY(int, mkstemps, (char* pattern, int suffix), pattern, suffix)
TEMPORARY(int, mkostemps, (char* pattern, int suffix, int flags), pattern, suffix, flags)
TEMPORARY(char*, mkdtemp, (char* pattern), pattern)

// ----------------------------------------- functions: others

API int execve(const char* path, char* const arguments[], char* const environment[]) {
  return REAL(execve)(to_read(HERE, path), arguments, with_variables(environment).data());
}
API int execv(const char* path, char* const arguments[]) { return execve(path, arguments, environ); }
API int execvpe(const char* file, char* const arguments[], char* const environment[]) {
  return REAL(execvpe)(file, arguments, with_variables(environment).data());
}
API int execvp(const char* file, char* const arguments[]) { return execvpe(file, arguments, environ); }
API int execveat(int at, const char* path, char* const arguments[], char* const environment[], int flags) {
  auto to = to_read(at, path, !(flags & AT_SYMLINK_NOFOLLOW));
  return REAL(execveat)(to.at, to, arguments, with_variables(environment).data(), flags);
}
API int fexecve(int file, char* const arguments[], char* const environment[]) {
  return REAL(fexecve)(file, arguments, with_variables(environment).data());
}
API int posix_spawn_file_actions_addopen(posix_spawn_file_actions_t* actions, int file, const char* path, int flags,
                                         mode_t mode) {
  return REAL(posix_spawn_file_actions_addopen)(actions, file, to_open(HERE, path, flags), flags, mode);
}
API int posix_spawn(pid_t* child, const char* path, const posix_spawn_file_actions_t* actions,
                    const posix_spawnattr_t* attributes, char* const arguments[], char* const environment[]) {
  auto to = to_read(HERE, path);
  return REAL(posix_spawn)(child, to, actions, attributes, arguments, with_variables(environment).data());
}
API int posix_spawnp(pid_t* child, const char* file, const posix_spawn_file_actions_t* actions,
                     const posix_spawnattr_t* attributes, char* const arguments[], char* const environment[]) {
  return REAL(posix_spawnp)(child, file, actions, attributes, arguments, with_variables(environment).data());
}

API int kill(pid_t process, int number) {
  if (settings().files && number != 0 && (process == -1 || (process != 0 && !is_ours(abs(process))))) {
    refused("signal " + std::to_string(number) + " to process " + std::to_string(process));
    errno = EPERM;
    return -1;
  }
  return REAL(kill)(process, number);
}
API int killpg(pid_t group, int number) { return kill(group ? -group : 0, number); }

API int connect(int socket, const sockaddr* address, socklen_t size) {
  std::string path;
  if (int error = refusal_at(address, size, path)) {
    errno = error;
    return -1;
  }
  UnixAddress real(address, size, path);
  return REAL(connect)(socket, real.address, real.size);
}
API int bind(int socket, const sockaddr* address, socklen_t size) {
  if (const char* path = unix_path(address, size)) {
    UnixAddress real(address, size, (const char*)to_make(HERE, path));
    return REAL(bind)(socket, real.address, real.size);
  }
  int result = REAL(bind)(socket, address, size);
  if (result == 0) note_port(socket);
  return result;
}
API int listen(int socket, int backlog) {
  int result = REAL(listen)(socket, backlog);
  if (result == 0) note_port(socket);
  return result;
}
API ssize_t sendto(int socket, const void* data, size_t size, int flags, const sockaddr* to, socklen_t length) {
  std::string path;
  if (int error = refusal_at(to, length, path)) {
    errno = error;
    return -1;
  }
  UnixAddress real(to, length, path);
  return REAL(sendto)(socket, data, size, flags, real.address, real.size);
}
API ssize_t sendmsg(int socket, const msghdr* message, int flags) {
  Message sent(*message);
  if (!sent.error) return REAL(sendmsg)(socket, &sent.real, flags);
  errno = sent.error;
  return -1;
}
API int sendmmsg(int socket, mmsghdr* messages, unsigned number, int flags) {
  unsigned sent = 0;
  for (ssize_t size; sent < number && (size = sendmsg(socket, &messages[sent].msg_hdr, flags)) >= 0; sent++)
    messages[sent].msg_len = size;
  return sent || !number ? sent : -1;
}
API int getaddrinfo(const char* host, const char* service, const addrinfo* hints, addrinfo** found) {
  if (settings().closed && !is_this_machine(host)) {
    refused("connection to " + std::string(host) + (service && *service ? ":" + std::string(service) : ""));
    return EAI_AGAIN;
  }
  return REAL(getaddrinfo)(host, service, hints, found);
}
API hostent* gethostbyname(const char* host) {
  if (!is_refused_name(host)) return REAL(gethostbyname)(host);
  h_errno = TRY_AGAIN;
  return nullptr;
}
API hostent* gethostbyname2(const char* host, int family) {
  if (!is_refused_name(host)) return REAL(gethostbyname2)(host, family);
  h_errno = TRY_AGAIN;
  return nullptr;
}
API int gethostbyname_r(const char* host, hostent* entry, char* buffer, size_t size, hostent** found, int* error) {
  if (!is_refused_name(host)) return REAL(gethostbyname_r)(host, entry, buffer, size, found, error);
  *found = nullptr;
  *error = TRY_AGAIN;
  return EAGAIN;
}
API int gethostbyname2_r(const char* host, int family, hostent* entry, char* buffer, size_t size, hostent** found,
                         int* error) {
  if (!is_refused_name(host)) return REAL(gethostbyname2_r)(host, family, entry, buffer, size, found, error);
  *found = nullptr;
  *error = TRY_AGAIN;
  return EAGAIN;
}
// Questions to name servers (resolver(3)), also under the names that programs for glibc before 2.34 call.
#define QUESTION(name)                                                                                \
  API int name(const char* host, int kind, int type, unsigned char* answer, int size) {               \
    using Function = int (*)(const char*, int, int, unsigned char*, int);                             \
    if (!is_refused_name(host)) return REAL_AS(Function, #name)(host, kind, type, answer, size);      \
    h_errno = TRY_AGAIN;                                                                              \
    return -1;                                                                                        \
  }
QUESTION(res_query)
QUESTION(res_search)
QUESTION(__res_query)
QUESTION(__res_search)
#define QUESTION_IN(name)                                                                             \
  API int name(void* state, const char* host, int kind, int type, unsigned char* answer, int size) {  \
    using Function = int (*)(void*, const char*, int, int, unsigned char*, int);                      \
    if (!is_refused_name(host)) return REAL_AS(Function, #name)(state, host, kind, type, answer, size); \
    h_errno = TRY_AGAIN;                                                                              \
    return -1;                                                                                        \
  }
QUESTION_IN(res_nquery)
QUESTION_IN(res_nsearch)
QUESTION_IN(__res_nquery)
QUESTION_IN(__res_nsearch)
