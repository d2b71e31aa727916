
#include <algorithm>
#include <string_view>

#include "choir/core/failure.hpp"

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

}  // namespace choir
