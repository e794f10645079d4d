// Errors as values.
//
// Every function that can fail for a reason outside our own code returns Result<T>: a value, or an
// Error whose one-line message names the thing, the offending value and the remedy. Nothing in this
// project throws; what libraries throw is caught where it enters (cli/main, thread entries, the
// HTTP handler). All types here are values and may be used from any thread.
#pragma once

#include <expected>
#include <format>
#include <string>
#include <string_view>
#include <utility>

namespace base {

// What kind of thing went wrong; base/error_status.h has each kind's exit and HTTP status.
enum class ErrorKind {
  kInvalidInput,   // the command line, or a request: the caller can correct it
  kUnsupported,    // well formed, but not supported (yet)
  kCapacity,       // the targets together are too small
  kIo,             // the operating system refused a read, write or mapping
  kCorruptModel,   // a model, plan or profile that is missing or cannot be used
  kWorkerLost,     // a worker or remote device went away
  kTimeout,        // a deadline passed
  kCancelled,      // the user or the client gave up
  kDeviceFailure,  // a device computes wrong numbers or failed while running
  kBusy,           // too many requests wait already: try again later
  kUnavailable,    // shutting down, or not ready yet
  kInternal,       // a fault of ours or of a library
};

// The kind's name as it appears in JSON and logs, for example "invalid_input".
std::string_view ErrorKindName(ErrorKind kind);

struct Error {
  ErrorKind kind = ErrorKind::kInternal;
  std::string message;  // one line, no trailing full stop or newline
};

// A T, or why there is none. Ignoring one is a compiler warning.
template <class T>
class [[nodiscard]] Result : public std::expected<T, Error> {
 public:
  using std::expected<T, Error>::expected;
  using std::expected<T, Error>::operator=;
};

// `return Fail(ErrorKind::kIo, "cannot open {}: {}", path, reason);`
template <class... Args>
std::unexpected<Error> Fail(ErrorKind kind, std::format_string<Args...> format, Args&&... args) {
  return std::unexpected<Error>(Error{kind, std::format(format, std::forward<Args>(args)...)});
}

// Hands the error of one Result on as that of another: `if (!x) return Forward(x);`
template <class T>
std::unexpected<Error> Forward(Result<T>& failed) {
  return std::unexpected<Error>(std::move(failed.error()));
}
template <class T>
std::unexpected<Error> Forward(Result<T>&& failed) {
  return std::unexpected<Error>(std::move(failed.error()));
}

}  // namespace base
