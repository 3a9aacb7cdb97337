// Makes what a program writes land in its overlay: a library that stands before the C library (LD_PRELOAD).
//
// It is no wall (that is wall.py): a program can call the kernel itself, or leave the library behind.
// MEMLAB_SANDBOX is the scratch folder; MEMLAB_SANDBOX_KEEP is the folder that the program may really change.
//
// "upper" in the scratch folder mirrors the machine's root. A folder there is complete (it holds all that the program
// sees in that folder) or a mere stand-in for the real folder; stand-ins, for files also, have the set-user-ID bit. A
// folder becomes complete, filled with stand-ins, when the first entry is made or removed in it, and a file is copied
// when it is first changed. What is absent from a complete folder was deleted.

#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <limits.h>
#include <spawn.h>
#include <sys/file.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#define REAL_AS(type, name) ((type)real_function<__COUNTER__>(name))
#define REAL(name) REAL_AS(decltype(&::name), #name)
#define HERE AT_FDCWD

namespace {

template <int N>
void* real_function(const char* name) {
  static void* found = dlsym(RTLD_NEXT, name);
  return found;
}

// The settings are read once, before the program can change its environment.
struct Settings {
  std::string scratch, upper, keep;
  std::vector<std::string> variables;  // of every child process

  Settings() : scratch(value("MEMLAB_SANDBOX")), upper(scratch + "/upper"), keep(value("MEMLAB_SANDBOX_KEEP")) {
    for (std::string name :
         {"LD_PRELOAD", "MEMLAB_LAUNCH", "MEMLAB_SANDBOX", "MEMLAB_SANDBOX_KEEP", "MEMLAB_SANDBOX_NETWORK"})
      if (!value(name).empty()) variables.push_back(name + "=" + value(name));
  }
  static std::string value(const std::string& name) { return getenv(name.c_str()) ? getenv(name.c_str()) : ""; }
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
  return path.starts_with(folder) && (path.size() == folder.size() || path[folder.size()] == '/');
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
  bool is_redirected() const { return state == State::Own || state == State::Absent; }
  bool is_settled() const { return is_redirected() || state == State::Kept; }
  std::string upper() const { return settings().upper + path; }
  std::string real() const { return is_redirected() ? upper() : path.empty() ? "/" : path; }
};

// glibc before 2.33 has no functions stat and mknod, but __xstat and __xmknod: the system calls are in all.
bool stat_of(const std::string& path, struct stat& found, int flags = AT_SYMLINK_NOFOLLOW) {
  return syscall(SYS_newfstatat, HERE, path.c_str(), &found, flags) == 0;
}

bool is_stand_in(const std::string& path) {
  struct stat found;
  return stat_of(path, found) && (found.st_mode & S_ISUID) && (S_ISDIR(found.st_mode) || S_ISREG(found.st_mode));
}

bool exists(const std::string& path, struct stat found = {}) { return stat_of(path, found); }

bool is_special(const std::string& path) {
  return is_below(path, "/proc") || is_below(path, "/dev") || is_below(path, "/sys");
}

State state_in(const Place& parent, const std::string& path) {
  if (is_special(path) || is_below(path, settings().keep) || is_below(path, settings().scratch)) return State::Kept;
  if (parent.state != State::Shared && parent.state != State::Own) return parent.state;
  std::string upper = settings().upper + path;
  if (exists(upper)) return is_stand_in(upper) ? State::Shared : State::Own;
  return parent.state == State::Own ? State::Absent : State::Lower;
}

std::string without_upper(const std::string& path) {
  const std::string& upper = settings().upper;
  return path == upper ? "/" : is_below(path, upper) ? path.substr(upper.size()) : path;
}

std::string link_of(const std::string& path) {
  char target[PATH_MAX];
  ssize_t size = REAL(readlink)(path.c_str(), target, sizeof target);
  return size < 0 ? "" : std::string(target, size);
}

std::string folder_of(int descriptor) {
  return without_upper(link_of(descriptor == HERE ? "/proc/self/cwd" : "/proc/self/fd/" + std::to_string(descriptor)));
}

// Finds a path in what the program sees. `follow`: also a symbolic link that is its last part.
Place find(int at, const char* given, bool follow = true) {
  KeepErrno keep_errno;
  std::string rest = *given == '/' ? given : folder_of(at) + "/" + given;
  std::vector<Place> here{{"", is_stand_in(settings().upper) ? State::Shared : State::Own}};
  for (int links = 0;;) {
    size_t from = rest.find_first_not_of('/');
    if (from == std::string::npos) return here.back();
    size_t to = std::min(rest.find('/', from), rest.size());
    std::string part = rest.substr(from, to - from);
    rest = rest.substr(to);
    if (part == ".." && here.size() > 1) here.pop_back();
    if (part == "." || part == "..") continue;
    Place next{here.back().path + "/" + part};
    next.state = state_in(here.back(), next.path);
    if (is_special(next.path)) return {next.path + rest, State::Kept};  // links of /proc/self/fd are no paths
    std::string target = follow || !rest.empty() ? link_of(next.real()) : "";
    if (target.empty()) here.push_back(next);
    if (target.empty()) continue;
    if (++links > 40) return {settings().scratch + "/loop" + rest, State::Kept};  // a link to itself: ELOOP
    if (target[0] == '/') here.resize(1);
    rest = target + rest;
  }
}

std::string folder_part(const std::string& path) { return path.substr(0, path.rfind('/')); }

// ----------------------------------------- changes

struct Lock {
  int file = REAL(open)((settings().scratch + "/report/lock").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  Lock() { flock(file, LOCK_EX); }
  ~Lock() { flock(file, LOCK_UN), close(file); }  // not only close: a child that was forked meanwhile holds it too
};

void make_stand_in(const std::string& path, const std::string& upper, mode_t type) {
  if (S_ISLNK(type)) return (void)REAL(symlink)(link_of(path).c_str(), upper.c_str());
  if (!S_ISDIR(type)) return (void)syscall(SYS_mknodat, HERE, upper.c_str(), S_IFREG | S_ISUID, 0);
  REAL(mkdir)(upper.c_str(), 0700), REAL(chmod)(upper.c_str(), S_ISUID | 0700);  // mkdir(2) drops the bit
}

void make_stand_ins(const std::string& folder) {
  for (size_t end = 0; end != std::string::npos && !folder.empty();) {
    end = folder.find('/', end + 1);
    std::string each = folder.substr(0, end);
    if (!exists(settings().upper + each)) make_stand_in(each, settings().upper + each, S_IFDIR);
  }
}

// Makes a folder complete, unless its user may not list it: then it stays a stand-in, with what the program made in it.
void fill(Place& folder, const struct stat& found) {
  Lock lock;
  make_stand_ins(folder.path);
  std::string path = folder.real() + "/";
  if (is_stand_in(folder.upper())) {
    DIR* entries = REAL(opendir)(path.c_str());
    if (!entries) return;
    while (dirent* entry = readdir(entries)) {
      std::string name = entry->d_name, upper = folder.upper() + "/" + name;
      struct stat each;
      if (name != "." && name != ".." && !exists(upper) && stat_of(path + name, each))
        make_stand_in(path + name, upper, each.st_mode);
    }
    closedir(entries);
    REAL(chmod)(folder.upper().c_str(), found.st_mode & 07777 & ~S_ISUID);
  }
  folder.state = State::Own;
}

// Prepares a folder for an entry that is made or removed. Returns false if the program may not change the real folder:
// the kernel then says so.
bool complete(Place folder) {
  if (folder.is_settled()) return true;
  KeepErrno keep_errno;
  struct stat found;
  bool is_folder = stat_of(folder.real(), found) && S_ISDIR(found.st_mode);
  return is_folder && REAL(access)(folder.real().c_str(), W_OK | X_OK) == 0 && (fill(folder, found), true);
}

void copy(const std::string& from, const std::string& to, const struct stat& found, bool content) {
  int source = REAL(open)(from.c_str(), O_RDONLY | O_CLOEXEC);
  int target = REAL(open)(to.c_str(), O_WRONLY | O_TRUNC | O_CLOEXEC);
  while (content && sendfile(target, source, nullptr, 1 << 30) > 0);
  struct timespec times[] = {found.st_atim, found.st_mtim};
  futimens(target, times);
  close(source);
  close(target);
}

// Whether the program may write to a file or folder, or, as the owner of a read-only one, change its attributes.
bool may_change(const std::string& path, const struct stat& found) {
  return REAL(access)(path.c_str(), W_OK) == 0 || (errno == EACCES && found.st_uid == geteuid());
}

// Makes what exists the program's own. Leaves it as it is if the program may not change it: the kernel then says so.
void take(Place& place, bool content = true) {
  KeepErrno keep_errno;
  struct stat found;
  if (place.is_settled() || !stat_of(place.real(), found)) return;
  bool is_link = S_ISLNK(found.st_mode), is_folder = S_ISDIR(found.st_mode);
  if (!is_link && !((is_folder || S_ISREG(found.st_mode)) && may_change(place.real(), found))) return;
  if (is_folder) return fill(place, found);
  Lock lock;
  place.state = State::Own;
  make_stand_ins(folder_part(place.path));
  std::string upper = place.upper();
  if (!exists(upper)) make_stand_in(place.path, upper, found.st_mode);
  if (is_link || !is_stand_in(upper)) return;
  REAL(chmod)(upper.c_str(), S_ISUID | 0600);
  copy(place.path, upper, found, content);
  REAL(chmod)(upper.c_str(), found.st_mode & 07777 & ~S_ISUID);
}

// The arguments of the real function.
struct Real {
  int at = HERE;
  const char* given = nullptr;
  std::string path;
  Real(int at, const char* given) : at(at), given(given) {}
  Real(std::string path) : path(std::move(path)) {}
  operator const char*() const { return path.empty() ? given : path.c_str(); }
};

bool is_as_given(const char* path) { return settings().keep.empty() || !path || !*path; }

Real to_read(int at, const char* path, bool follow = true) {
  return is_as_given(path) ? Real(at, path) : Real(find(at, path, follow).real());
}

// An entry that is to be made.
Real to_make(int at, const char* path, bool follow = false) {
  if (is_as_given(path)) return {at, path};
  Place place = find(at, path, follow);
  if (place.state == State::Kept) return place.real();
  return complete(find(HERE, (folder_part(place.path) + "/").c_str())) ? place.upper() : place.real();
}

// A file or folder whose content or attributes are to be changed.
Real to_change(int at, const char* path, bool follow = true) {
  if (is_as_given(path)) return {at, path};
  Place place = find(at, path, follow);
  take(place);
  return place.real();
}

Real to_remove(int at, const char* path, bool = false) {
  if (is_as_given(path)) return {at, path};
  Place place = find(at, path, false);
  struct stat found;
  if (!stat_of(place.real(), found)) return place.real();
  if (S_ISDIR(found.st_mode)) complete(place);  // it may have entries: the real function says so
  return to_make(at, path);
}

Real to_open(int at, const char* path, int flags) {
  if (is_as_given(path)) return {at, path};
  bool writes = (flags & O_ACCMODE) != O_RDONLY || (flags & (O_CREAT | O_TRUNC));
  bool is_new = (flags & (O_CREAT | O_EXCL)) == (O_CREAT | O_EXCL), follow = !(flags & O_NOFOLLOW) && !is_new;
  Place place = find(at, path, follow);
  if (!writes || (flags & O_PATH)) return place.real();
  if (!exists(place.real()) && (flags & O_CREAT)) return to_make(at, path, follow);
  if (!is_new) take(place, !(flags & O_TRUNC));
  return place.real();
}

int flags_of(const char* mode) {
  int access = strchr(mode, '+') ? O_RDWR : *mode == 'r' ? O_RDONLY : O_WRONLY;
  return access | (*mode == 'r' ? 0 : *mode == 'w' ? O_CREAT | O_TRUNC : O_CREAT);
}

}  // namespace

// ----------------------------------------- functions of the C library

// A function `name` of the C library. What is not redirected passes through as it is, whatever its type: the calling
// conventions of x86-64 and AArch64 hand over all such arguments and results in whole registers.
#define API(name, ...)                                                                               \
  __attribute__((visibility("default"))) long memlab_##name(__VA_ARGS__) __asm__(#name);             \
  long memlab_##name(__VA_ARGS__)
#define NEXT(name) REAL_AS(long (*)(...), #name)
#define FOLLOWS(flags) !((flags) & AT_SYMLINK_NOFOLLOW)

// One path; a folder and a path, with `flags` of AT_*; a number that comes before (the version of a struct stat).
#define PATH(name, use, follow)                                                                      \
  API(name, const char* path, long a, long b, long c, long d) {                                      \
    return NEXT(name)((const char*)use(HERE, path, follow), a, b, c, d);                             \
  }
#define PATH_AT(name, use, follow)                                                                   \
  API(name, int at, const char* path, long a, long b, long c) {                                      \
    Real to = use(at, path, follow);                                                                 \
    return NEXT(name)(to.at, (const char*)to, a, b, c);                                              \
  }
#define PATH_AFTER(name, use, follow)                                                                \
  API(name, long before, const char* path, long a) {                                                 \
    return NEXT(name)(before, (const char*)use(HERE, path, follow), a);                              \
  }
#define PATH_AT_AFTER(name, use, follow)                                                             \
  API(name, long before, int at, const char* path, long a, long b) {                                 \
    Real to = use(at, path, follow);                                                                 \
    return NEXT(name)(before, to.at, (const char*)to, a, b);                                         \
  }

PATH(open, to_open, a) PATH(open64, to_open, a) PATH_AT(openat, to_open, a) PATH_AT(openat64, to_open, a)
// What programs call that were compiled with _FORTIFY_SOURCE.
PATH(__open_2, to_open, a) PATH(__open64_2, to_open, a) PATH_AT(__openat_2, to_open, a)
PATH_AT(__openat64_2, to_open, a)
PATH(creat, to_open, O_CREAT | O_WRONLY | O_TRUNC) PATH(creat64, to_open, O_CREAT | O_WRONLY | O_TRUNC)
#define STREAM(name)                                                                                 \
  API(name, const char* path, const char* mode, long a) {                                            \
    return NEXT(name)((const char*)to_open(HERE, path, flags_of(mode)), mode, a);                    \
  }
STREAM(fopen) STREAM(fopen64) STREAM(freopen) STREAM(freopen64)

PATH(stat, to_read, true) PATH(stat64, to_read, true) PATH(lstat, to_read, false) PATH(lstat64, to_read, false)
PATH_AT(fstatat, to_read, FOLLOWS(b)) PATH_AT(fstatat64, to_read, FOLLOWS(b)) PATH_AT(statx, to_read, FOLLOWS(a))
// What programs call that were compiled with glibc before 2.33.
PATH_AFTER(__xstat, to_read, true) PATH_AFTER(__xstat64, to_read, true)
PATH_AFTER(__lxstat, to_read, false) PATH_AFTER(__lxstat64, to_read, false)
PATH_AT_AFTER(__fxstatat, to_read, FOLLOWS(b)) PATH_AT_AFTER(__fxstatat64, to_read, FOLLOWS(b))
PATH(access, to_read, true) PATH(eaccess, to_read, true) PATH(euidaccess, to_read, true)
PATH_AT(faccessat, to_read, FOLLOWS(b)) PATH(readlink, to_read, false) PATH_AT(readlinkat, to_read, false)
PATH(opendir, to_read, true) PATH(chdir, to_read, true) PATH(getxattr, to_read, true) PATH(listxattr, to_read, true)
PATH(lgetxattr, to_read, false) PATH(llistxattr, to_read, false)
PATH(statfs, to_read, true) PATH(statfs64, to_read, true) PATH(statvfs, to_read, true) PATH(statvfs64, to_read, true)

PATH(mkdir, to_make, false) PATH(mkfifo, to_make, false) PATH(mknod, to_make, false)
PATH_AT(mkdirat, to_make, false) PATH_AT(mkfifoat, to_make, false) PATH_AT(mknodat, to_make, false)
PATH_AFTER(symlink, to_make, false) PATH_AT_AFTER(symlinkat, to_make, false)
PATH(unlink, to_remove, false) PATH(rmdir, to_remove, false) PATH(remove, to_remove, false)
PATH_AT(unlinkat, to_remove, false)

PATH(truncate, to_change, true) PATH(truncate64, to_change, true) PATH(chmod, to_change, true)
PATH(chown, to_change, true) PATH(lchown, to_change, false) PATH(utime, to_change, true) PATH(utimes, to_change, true)
PATH(lutimes, to_change, false) PATH(setxattr, to_change, true) PATH(lsetxattr, to_change, false)
PATH(removexattr, to_change, true) PATH(lremovexattr, to_change, false) PATH_AT(fchmodat, to_change, FOLLOWS(b))
PATH_AT(fchownat, to_change, FOLLOWS(c)) PATH_AT(utimensat, to_change, FOLLOWS(b))

API(linkat, int from_at, const char* from, int at, const char* path, int flags) {
  Real source = to_change(from_at, from, flags & AT_SYMLINK_FOLLOW), to = to_make(at, path);
  return REAL(linkat)(source.at, source, to.at, to, flags);
}
API(link, const char* from, const char* path) { return memlab_linkat(HERE, from, HERE, path, 0); }
API(renameat2, int from_at, const char* from, int at, const char* path, unsigned flags) {
  if (is_as_given(from) || is_as_given(path)) return REAL(renameat2)(from_at, from, at, path, flags);
  Place source = find(from_at, from, false);
  struct stat found;
  if (!source.is_settled() && stat_of(source.real(), found) && S_ISDIR(found.st_mode))
    return errno = EXDEV, -1;  // as in an overlay of the kernel: the caller copies
  take(source);
  to_remove(at, path);  // what is replaced has a stand-in then
  return REAL(renameat2)(HERE, to_remove(from_at, from), HERE, to_make(at, path), flags);
}
API(renameat, int at, const char* from, int to, const char* path) { return memlab_renameat2(at, from, to, path, 0); }
API(rename, const char* from, const char* path) { return memlab_renameat2(HERE, from, HERE, path, 0); }

// Temporary names: the real function fills in the last part of the name.
#define TEMPORARY(name)                                                                              \
  API(name, char* given, long a, long b) {                                                           \
    Real to = to_make(HERE, given);                                                                  \
    if (to.path.empty()) return NEXT(name)(given, a, b);                                             \
    long made = NEXT(name)(to.path.data(), a, b);                                                    \
    size_t size = to.path.size() - to.path.rfind('/') - 1;                                           \
    strcpy(given + strlen(given) - size, to.path.c_str() + to.path.size() - size);                   \
    return made == (long)to.path.data() ? (long)given : made;                                        \
  }
TEMPORARY(mkstemp) TEMPORARY(mkstemp64) TEMPORARY(mkostemp) TEMPORARY(mkostemp64) TEMPORARY(mkstemps)
TEMPORARY(mkostemps) TEMPORARY(mkdtemp)

API(getcwd, char* buffer, size_t size) {
  char here[PATH_MAX];
  if (!REAL(getcwd)(here, sizeof here)) return 0;
  std::string seen = without_upper(here);
  if (buffer && size <= seen.size()) return errno = ERANGE, 0;
  return (long)strcpy(buffer ? buffer : (char*)malloc(std::max(size, seen.size() + 1)), seen.c_str());
}
API(get_current_dir_name) { return memlab_getcwd(nullptr, 0); }
API(realpath, const char* path, char* resolved) {
  if (is_as_given(path)) return (long)REAL(realpath)(path, resolved);
  Place place = find(HERE, path);
  if (place.state == State::Kept) return (long)REAL(realpath)(place.path.c_str(), resolved);
  struct stat found;
  if (!stat_of(place.real(), found, 0)) return 0;
  return (long)strcpy(resolved ? resolved : (char*)malloc(PATH_MAX), place.path.empty() ? "/" : place.path.c_str());
}
API(__realpath_chk, const char* path, char* resolved) { return memlab_realpath(path, resolved); }
API(canonicalize_file_name, const char* path) { return memlab_realpath(path, nullptr); }

__attribute__((noinline)) static long dlopen_there(const char* path, int flags) {
  return (long)REAL(dlopen)(to_read(HERE, path), flags);
}
API(dlopen, const char* path, int flags) {
  if (!is_as_given(path) && strchr(path, '/')) return dlopen_there(path, flags);
  auto* real = NEXT(dlopen);
  return real(path, flags);  // compiled to a jump: dlopen(3) searches the RUNPATH of the library that it returns to
}

static std::vector<const char*> with_variables(const char* const* environment) {
  std::vector<const char*> all;
  for (const auto& each : settings().variables) all.push_back(each.c_str());
  for (; environment && *environment; environment++) {
    auto is_same = [&](const std::string& each) { return !strncmp(*environment, each.c_str(), each.find('=') + 1); };
    if (std::ranges::none_of(settings().variables, is_same)) all.push_back(*environment);
  }
  all.push_back(nullptr);
  return all;
}

using Words = const char* const*;
#define VARIABLES with_variables(variables).data()
API(execve, const char* path, Words words, Words variables) {
  return NEXT(execve)((const char*)to_read(HERE, path), words, VARIABLES);
}
API(execv, const char* path, Words words) { return memlab_execve(path, words, environ); }
API(execvpe, const char* file, Words words, Words variables) { return NEXT(execvpe)(file, words, VARIABLES); }
API(execvp, const char* file, Words words) { return memlab_execvpe(file, words, environ); }
API(execveat, int at, const char* path, Words words, Words variables, int flags) {
  Real to = to_read(at, path, FOLLOWS(flags));
  return NEXT(execveat)(to.at, (const char*)to, words, VARIABLES, flags);
}
API(fexecve, int file, Words words, Words variables) { return NEXT(fexecve)(file, words, VARIABLES); }
API(posix_spawn, pid_t* child, const char* path, long a, long b, Words words, Words variables) {
  return NEXT(posix_spawn)(child, (const char*)to_read(HERE, path), a, b, words, VARIABLES);
}
API(posix_spawnp, pid_t* child, const char* file, long a, long b, Words words, Words variables) {
  return NEXT(posix_spawnp)(child, file, a, b, words, VARIABLES);
}
API(posix_spawn_file_actions_addopen, long actions, int file, const char* path, int flags, mode_t mode) {
  return NEXT(posix_spawn_file_actions_addopen)(actions, file, (const char*)to_open(HERE, path, flags), flags, mode);
}

// ----------------------------------------- Unix sockets, names of machines

// A Unix socket's address with the real path, which is shorter than the limit of sockaddr_un only by way of a link.
struct UnixAddress {
  sockaddr_un own{AF_UNIX};
  const sockaddr* address;
  socklen_t size;
  int folder = -1;

  UnixAddress(const void* given, socklen_t length, bool is_new = false) : address((sockaddr*)given), size(length) {
    bool is_path = given && address->sa_family == AF_UNIX && length > sizeof(sa_family_t);
    const char* name = is_path ? ((const sockaddr_un*)given)->sun_path : "";
    if (!*name) return;
    std::string path = (const char*)(is_new ? to_make(HERE, name) : to_read(HERE, name));
    if (path.size() >= sizeof own.sun_path) {
      folder = REAL(open)(folder_part(path).c_str(), O_PATH | O_CLOEXEC);
      path = "/proc/self/fd/" + std::to_string(folder) + path.substr(path.rfind('/'));
    }
    strncpy(own.sun_path, path.c_str(), sizeof own.sun_path - 1);
    address = (const sockaddr*)&own;
    size = sizeof own;
  }
  ~UnixAddress() { folder >= 0 && close(folder); }
};

#define ADDRESS(name, is_new)                                                                        \
  API(name, int socket, const void* address, socklen_t size) {                                       \
    UnixAddress to(address, size, is_new);                                                           \
    return REAL(name)(socket, to.address, to.size);                                                  \
  }
ADDRESS(connect, false) ADDRESS(bind, true)
API(sendto, int socket, const void* data, size_t size, int flags, const void* address, socklen_t length) {
  UnixAddress to(address, length);
  return REAL(sendto)(socket, data, size, flags, to.address, to.size);
}
API(sendmsg, int socket, const msghdr* message, int flags) {
  UnixAddress to(message->msg_name, message->msg_namelen);
  msghdr sent = *message;
  sent.msg_name = (void*)to.address, sent.msg_namelen = to.size;
  return REAL(sendmsg)(socket, &sent, flags);
}
