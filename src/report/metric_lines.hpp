#pragma once
// A fast reader of metrics.jsonl: a run of 100,000 steps has 60 MB of lines.
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "src/core/json_value.hpp"

namespace choir::report {

/// Truncates a value from a file to an integer. Numbers outside the range become its nearest end,
/// and NaN becomes 0: all casts of such values are made here.
std::int64_t clamped_integer(double value);

/// Parses a text from a file of a run. The result is discarded if the text is not JSON, or is
/// nested deeper than 64, because documents are copied and printed by recursion.
nlohmann::json document_of(std::string_view text);

/// A number over steps; NaN if it was not finite.
struct Curve {
  std::vector<double> x, y;
};

class MetricLines {
 public:
  /// Adds one line without its end. Objects with "event" are kept as text. Other JSON without
  /// "step" or with more than numbers is a record of another kind and ignored. Lines that are not
  /// JSON or longer than kLongest, and steps that are not integers from 0 to 2^53, are counted as
  /// damaged.
  void add(std::string_view line);
  /// Adds a file, of which only a line at a time is in memory. Returns false if it cannot be read.
  bool read(const std::string& path);

  std::map<std::string, Curve> take_curves();
  const std::vector<std::string>& records() const { return records_; }
  std::size_t lines() const { return lines_; }    ///< lines with a step
  std::size_t broken() const { return broken_; }  ///< damaged lines, except a last line that is cut
  bool cut() const { return cut_; }               ///< the last line is not JSON
  bool repeated() const { return repeated_; }     ///< some steps occur twice: the later line counts

  static constexpr std::size_t kLongest = std::size_t{64} << 20;  ///< bytes of a line

 private:
  bool add_numbers(std::string_view line);
  Curve& curve(std::string_view key, std::size_t at);

  std::map<std::string, Curve, std::less<>> curves_;
  std::vector<std::pair<std::string, Curve*>> order_;  // as in the previous line
  std::vector<std::pair<std::string_view, double>> fields_;
  std::vector<std::string> records_;
  std::size_t lines_ = 0, broken_ = 0;
  bool cut_ = false, repeated_ = false;
  double last_step_ = -1;
};

}  // namespace choir::report
