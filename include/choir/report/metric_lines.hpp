#pragma once
// The lines of metrics.jsonl, fast: a run of 100,000 steps has 60 MB of them.
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace choir::report {

/// A number over steps; NaN where it was not finite.
struct Curve {
  std::vector<double> x, y;
};

class MetricLines {
 public:
  /// One line without its end. Objects with "event" are kept as text; other JSON that has no "step"
  /// is passed over; what is no JSON is counted.
  void add(std::string_view line);
  /// A file; false where it cannot be read.
  bool read(const std::string& path);

  std::map<std::string, Curve> take_curves();
  const std::vector<std::string>& records() const { return records_; }
  std::size_t lines() const { return lines_; }    ///< with a step
  std::size_t broken() const { return broken_; }  ///< no JSON, the last line aside
  bool cut() const { return cut_; }               ///< the last line is no JSON
  bool repeated() const { return repeated_; }     ///< steps that came twice: the later line counts

 private:
  bool add_numbers(std::string_view line);
  Curve& curve(std::string_view key, std::size_t at);

  std::map<std::string, Curve, std::less<>> curves_;
  std::vector<std::pair<std::string, Curve*>> order_;  // as in the line before
  std::vector<std::pair<std::string_view, double>> fields_;
  std::vector<std::string> records_;
  std::size_t lines_ = 0, broken_ = 0;
  bool cut_ = false, repeated_ = false;
  double last_step_ = -1;
};

}  // namespace choir::report
