#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <new>
#include <string_view>
#include <system_error>

#include "choir/core/error.hpp"
#include "src/core/json_value.hpp"

namespace choir {
namespace {

std::string short_location(const std::source_location& at) {
  std::string_view file = at.file_name();
  const auto slash = file.find_last_of('/');
  if (slash != std::string_view::npos) file.remove_prefix(slash + 1);
  return fmt::format("{}:{}", file, at.line());
}

}  // namespace

Error::Error(ExitCode code, const std::string& what, std::string hint, std::source_location at)
    : std::runtime_error(what), code_(code), hint_(std::move(hint)), where_(short_location(at)) {}

std::string what_and_where(const Error& error) {
  std::string text = error.what();
  // An agreed error is thrown where the ranks agree, not where it happened; its text names the
  // origin.
  const bool helps = error.code() == ExitCode::other || error.code() == ExitCode::communication;
  if (helps && error.agreed_ranks() == 1)
    text.insert(std::min(text.find('\n'), text.size()), fmt::format(" [{}]", error.where()));
  return text;
}

std::string describe(const std::exception& error) {
  const auto* own = dynamic_cast<const Error*>(&error);
  if (own != nullptr)
    return what_and_where(*own) + (own->hint().empty() ? "" : "\n  -> " + own->hint());
  const Failure failure = failure_of(error);
  return failure.hint.empty() ? failure.text
                              : fmt::format("{}\n  -> {}", failure.text, failure.hint);
}

namespace {

constexpr const char* kNoStdout = "standard output could not be written";
constexpr const char* kElsewhere =
    "is its disk full, or over a limit? the output is not complete: send it elsewhere";

/// The missing key or the wrong types of a value. The library reports them only in its text.
std::string json_cause(const nlohmann::json::exception& error) {
  constexpr int kWrongType = 302, kNoIndex = 401, kNoKey = 403, kNotUtf8 = 316;
  const std::string_view said = error.what();
  const auto between = [&](std::string_view before, std::string_view after) -> std::string_view {
    const std::size_t at = said.find(before);
    if (at == said.npos) return {};
    const std::string_view rest = said.substr(at + before.size());
    return rest.substr(0, rest.rfind(after));
  };
  if (error.id == kNoKey)
    return fmt::format("the key '{}' is missing", between("key '", "' not found"));
  if (error.id == kNoIndex) return "a list has too few elements";
  if (error.id == kNotUtf8) return "a text contains bytes that are not UTF-8";
  if (error.id / 100 == 1) return "it is not valid JSON";
  const std::string_view wanted = between("type must be ", ", but is ");
  const std::string_view found = between("but is ", "");
  if (error.id == kWrongType && !wanted.empty() && !found.empty())
    return fmt::format("a value is of type {} where {} is required", found, wanted);
  return "a value is of another type than required";
}

/// The standard library reports a thread that cannot be started only by this code.
bool starts_no_thread(const std::system_error& error) {
  return error.code() == std::errc::resource_unavailable_try_again;
}

}  // namespace

std::string plain_cause(const std::exception& error) {
  if (const auto* json = dynamic_cast<const nlohmann::json::exception*>(&error))
    return json_cause(*json);
  if (const auto* file = dynamic_cast<const std::filesystem::filesystem_error*>(&error)) {
    std::string paths;
    for (const auto& path : {file->path1(), file->path2()})
      if (!path.empty())
        paths += fmt::format("{}'{}'", paths.empty() ? "" : " and ", path.string());
    return fmt::format("cannot access {}: {}", paths.empty() ? "a file" : paths,
                       file->code().message());
  }
  if (dynamic_cast<const Error*>(&error) != nullptr) return error.what();
  if (const auto* system = dynamic_cast<const std::system_error*>(&error))
    return starts_no_thread(*system) ? "the system refuses to start a thread"
                                     : system->code().message();
  if (dynamic_cast<const std::bad_alloc*>(&error) != nullptr)
    return "out of memory: the system gives no more";
  if (dynamic_cast<const std::length_error*>(&error) != nullptr)
    return "a size is larger than any memory";
  if (dynamic_cast<const std::invalid_argument*>(&error) != nullptr) return "a value is malformed";
  if (dynamic_cast<const std::out_of_range*>(&error) != nullptr) return "a value is out of range";
  return error.what();
}

std::string storage_cure(int number) {
  switch (number) {
    case ENOSPC:
    case EDQUOT:
      return "free some space, or lower checkpoint.keep, or move run.dir to a larger file system";
    case EFBIG:
      return "raise the limit on the size of files (ulimit -f), or lower checkpoint.keep";
    case EACCES:
    case EROFS:
    case EPERM:
      return "make it writable (lsattr shows flags that chmod does not), or choose another run.dir";
    case ENAMETOOLONG:
      return "choose a shorter name: most file systems take 255 bytes between two '/'";
    case EISDIR:
    case ENOTDIR:
    case EEXIST:
      return "something else has that name: move it away, or choose another run.dir";
    default:
      return {};
  }
}

Failure failure_of(const std::exception& error) {
  if (const auto* own = dynamic_cast<const Error*>(&error))
    return {own->code(), own->what(), own->hint(), own->where()};
  if (const auto* file = dynamic_cast<const std::filesystem::filesystem_error*>(&error))
    return {ExitCode::storage, plain_cause(error), storage_cure(file->code().value()), {}};
  // The printing library throws if the buffer cannot be flushed.
  if (const auto* system = dynamic_cast<const std::system_error*>(&error);
      system != nullptr && std::ferror(stdout) != 0)
    return {ExitCode::storage,
            fmt::format("{}: {}", kNoStdout, std::strerror(system->code().value())),
            kElsewhere,
            {}};
  if (const auto* system = dynamic_cast<const std::system_error*>(&error);
      system != nullptr && starts_no_thread(*system))
    return {ExitCode::other,
            plain_cause(error),
            "raise the limit on memory (ulimit -v) or on processes (ulimit -u)",
            {}};
  if (dynamic_cast<const std::bad_alloc*>(&error) != nullptr)
    return {ExitCode::other,
            plain_cause(error),
            "lower train.micro_batch_size or model.block_size, or raise the limit (ulimit -v)",
            {}};
  return {ExitCode::other, plain_cause(error), {}, {}};
}

std::string flush_stdout() {
  errno = 0;
  const bool flushed = std::fflush(stdout) == 0;
  if (flushed && std::ferror(stdout) == 0) return {};
  return fmt::format("{}: {}\n  -> {}", kNoStdout,
                     errno != 0 ? std::strerror(errno) : "an earlier write failed", kElsewhere);
}

}  // namespace choir
