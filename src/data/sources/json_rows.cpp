#include "src/data/sources/text_rows.hpp"

#include <algorithm>

#include "src/core/json_value.hpp"
#include "src/data/vocabulary/utf8.hpp"

namespace choir {
namespace {

constexpr std::size_t kRowPiece = std::size_t{1} << 20;

}  // namespace

LineScanner::LineScanner(std::unique_ptr<ByteStream> bytes, std::size_t most, bool starts_file)
    : bytes_(std::move(bytes)), most_(most), starts_file_(starts_file) {}

/// Reads more behind the bytes from at_ on; false at the end.
bool LineScanner::fill() {
  pending_.erase(0, at_);
  at_ = 0;
  const std::size_t before = pending_.size();
  pending_.resize(before + kRowPiece);
  std::size_t got = 0;
  try {
    got = bytes_->read(pending_.data() + before, kRowPiece);
  } catch (const DataError& error) {
    throw DataError(fmt::format("{} (after line {})", error.what(), number_), error.hint());
  }
  pending_.resize(before + got);
  return got > 0;
}

LineScanner::Line LineScanner::next(std::string& line) {
  line.clear();
  std::size_t seen = 0;  // bytes of this line without a line end
  bool long_line = false;
  std::int64_t dropped = 0;
  for (;;) {
    const std::size_t end = pending_.find('\n', at_ + seen);
    const bool found = end != std::string::npos;
    seen = (found ? end : pending_.size()) - at_;
    if (seen > most_) long_line = true;
    if (long_line) {
      dropped += static_cast<std::int64_t>(seen);
      at_ += seen;
      seen = 0;
    }
    if (!found && fill()) continue;
    if (!found && seen == 0 && dropped == 0) return Line::end;
    ++number_;
    offset_ = position_;
    position_ += dropped + static_cast<std::int64_t>(seen) + (found ? 1 : 0);
    line.assign(pending_, at_, seen);
    at_ += seen + (found ? 1 : 0);
    if (long_line) return Line::too_long;
    if (starts_file_ && number_ == 1)
      line.erase(0, static_cast<std::size_t>(byte_order_mark(line)));
    if (line.ends_with('\r')) line.pop_back();
    return Line::read;
  }
}

RowText text_of_row(std::string_view line, const std::string& field) {
  nlohmann::json row;
  try {
    row = read_json_line(line, "");
  } catch (const JsonError& error) {
    const JsonFault& fault = error.fault();
    return {"", fault.malformed ? "not valid JSON" : "refused JSON",
            fmt::format("column {}: {}", fault.column, fault.cause)};
  }
  if (!row.is_object()) return {"", "not a JSON object", ""};
  const auto found = row.find(field);
  if (found == row.end()) return {"", fmt::format("no field '{}'", field), ""};
  if (found->is_null()) return {};
  if (!found->is_string()) return {"", fmt::format("field '{}' is not a text", field), ""};
  return {std::move(found->get_ref<std::string&>()), "", ""};
}

}  // namespace choir
