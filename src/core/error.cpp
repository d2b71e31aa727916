#include "choir/core/error.hpp"

#include <algorithm>
#include <string_view>

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

std::string describe(const std::exception& error) {
  const auto* own = dynamic_cast<const Error*>(&error);
  if (own == nullptr) return error.what();
  std::string line = error.what();  // the place goes to the end of the first line
  // ... but for an agreed error: that place is where ranks agree, the text says where it happened.
  if (own->agreed_ranks() == 1)
    line.insert(std::min(line.find('\n'), line.size()), fmt::format(" [{}]", own->where()));
  if (!own->hint().empty()) line += fmt::format("\n  -> {}", own->hint());
  return line;
}

}  // namespace choir
