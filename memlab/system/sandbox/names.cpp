// Answers look-ups of the names of other machines, which have no address in a sandbox, and lists them (LD_PRELOAD).
//
// MEMLAB_SANDBOX is the scratch folder, in which report/refused gets a line for each look-up; MEMLAB_SANDBOX_NETWORK is
// "open" where names are looked up as ever.

#include <arpa/inet.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <limits.h>
#include <netdb.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <string>

// The calling conventions of x86-64 and AArch64 hand over all arguments here in whole registers.
#define API(name, ...)                                                                               \
  extern "C" __attribute__((visibility("default"))) long memlab_##name(__VA_ARGS__) __asm__(#name);  \
  long memlab_##name(__VA_ARGS__)
#define NEXT(name) ((long (*)(...))dlsym(RTLD_NEXT, #name))

static const std::string scratch = getenv("MEMLAB_SANDBOX") ? getenv("MEMLAB_SANDBOX") : "";
static const bool is_open = getenv("MEMLAB_SANDBOX_NETWORK") && !strcmp(getenv("MEMLAB_SANDBOX_NETWORK"), "open");

static bool is_refused(const char* host, const char* service = "") {
  char own[HOST_NAME_MAX + 1] = "", address[sizeof(in6_addr)];
  gethostname(own, sizeof own);
  bool is_here = !host || !*host || !strcmp(host, own) || !strncmp(host, "localhost", 9) || strchr(host, ':');
  if (scratch.empty() || is_open || is_here || inet_pton(AF_INET, host, address) == 1) return false;
  int list = open((scratch + "/report/refused").c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
  dprintf(list, "connection to %s%s%s\n", host, service && *service ? ":" : "", service ? service : "");
  close(list);
  h_errno = TRY_AGAIN;
  return true;
}

API(getaddrinfo, const char* host, const char* service, long hints, long found) {
  return is_refused(host, service) ? EAI_AGAIN : NEXT(getaddrinfo)(host, service, hints, found);
}
// `refused`: what the function returns without looking for the name.
#define LOOK_UP(name, refused)                                                                       \
  API(name, const char* host, long a, long b, long c, long d, long e, long f) {                      \
    return is_refused(host) ? (refused) : NEXT(name)(host, a, b, c, d, e, f);                        \
  }
#define NOT_FOUND(found, error) (*(void**)found = nullptr, *(int*)error = TRY_AGAIN, EAGAIN)
LOOK_UP(gethostbyname, 0) LOOK_UP(gethostbyname2, 0)
LOOK_UP(gethostbyname_r, NOT_FOUND(d, e)) LOOK_UP(gethostbyname2_r, NOT_FOUND(e, f))
// Questions to name servers (resolver(3)), also under the names that programs for glibc before 2.34 call.
#define QUESTION(name)                                                                               \
  API(name, long state, const char* host, long a, long b, long c, long d) {                          \
    return is_refused(host) ? -1 : NEXT(name)(state, host, a, b, c, d);                              \
  }
LOOK_UP(res_query, -1) LOOK_UP(res_search, -1) LOOK_UP(__res_query, -1) LOOK_UP(__res_search, -1)
QUESTION(res_nquery) QUESTION(res_nsearch) QUESTION(__res_nquery) QUESTION(__res_nsearch)
