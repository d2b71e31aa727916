#pragma once
// Charts as inline SVG, coloured by the classes of the page's style. Pure.
#include <string>
#include <vector>

#include "src/report/metric_lines.hpp"

namespace choir::report {

/// Escapes <, >, & and quotes in the printable form of a text, which may hold anything.
std::string escape_html(std::string_view text);

/// At most about n round numbers inside [low, high].
std::vector<double> round_ticks(double low, double high, int n);
/// Formats a tick: "0.05", "1,500", "20k", "1.5M", with the digits needed for steps of `step`.
std::string tick_text(double value, double step);

/// Formats a value for reading: "0.1769", "24,322", "1.2e-05".
std::string number_text(double value);

/// One column of pixels of a curve: mean and extremes of its finite values.
struct CurveColumn {
  double x = 0, mean = 0, low = 0, high = 0;
};
/// Reduces a curve with ascending x to at most `columns` columns; columns without a finite value
/// are omitted.
std::vector<CurveColumn> decimate(const Curve& curve, double from, double to, int columns);

/// Means over each point and its neighbours, with fewer neighbours towards both ends.
std::vector<CurveColumn> running_mean(const std::vector<CurveColumn>& columns);

struct ChartSeries {
  std::string label;  ///< "": not in the legend
  int colour = 0;
  Curve curve;
  bool dots = false;    ///< a point at each value
  bool dashed = false;  ///< a limit or an ideal, not a measurement
  /// 0: solid with round dots; 1, 2, 3: other dashes and marks, when the colours repeat.
  int round = 0;
  bool noisy = false;  ///< from kSmoothed values on: pale, with its running mean in front
};

inline constexpr int kRounds = 4;
/// Sets colour and round of the index-th of several lines, which use `colours` in turn. From
/// colours * kRounds on they repeat.
void take_turn(ChartSeries& series, std::size_t index, int colours);

/// Curves with fewer than kSmoothed values are shown as they are. A picture has kColumns columns;
/// curves with more values are already means.
inline constexpr std::size_t kSmoothed = 60, kColumns = 400;

/// A vertical line at x.
struct ChartMark {
  double x = 0;
  std::string text;  ///< tooltip
};

struct Chart {
  std::string title, unit, x_label = "step";
  std::vector<ChartSeries> series;
  std::vector<ChartMark> marks;
  bool from_zero = false;  ///< the y axis begins at 0
  bool logarithmic = false;
  bool stacked = false;           ///< stacked areas; the series have the same x
  std::vector<double> x_ticks{};  ///< in place of round ones
  std::string note{};             ///< text below the chart
  enum class Shown { none, last, median } shown = Shown::none;  ///< value shown beside each name
};

/// Returns a <figure> with title, legend and picture; "" if no series has a finite value.
std::string to_html(const Chart& chart);

/// A swatch and its name.
std::string legend_key(int colour, const std::string& label, bool dashed = false);

/// A part of a horizontal bar.
struct BarPart {
  std::string label;
  int colour = 0;
  double value = 0;
};
std::string bar(const std::string& label, const std::string& amount,
                const std::vector<BarPart>& parts, double full);

}  // namespace choir::report
