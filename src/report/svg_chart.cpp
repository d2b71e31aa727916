// Charts as inline SVG: ticks and their texts, curves reduced to the resolution of a screen, the
// drawing.

#include "src/report/svg_chart.hpp"

#include <fmt/core.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "src/core/json_value.hpp"
#include "src/core/output.hpp"
#include "src/core/quantities.hpp"
#include "src/core/stats.hpp"

namespace choir::report {

std::vector<double> round_ticks(double low, double high, int n) {
  if (!(high > low) || n < 1 || !std::isfinite(high - low)) return {low};
  const double rough = (high - low) / n;
  const double power = std::pow(10, std::floor(std::log10(rough)));
  double step = 10 * power;
  for (const double factor : {1.0, 2.0, 2.5, 5.0})
    if (factor * power >= rough * 0.999) {
      step = factor * power;
      break;
    }
  // The number of ticks is bounded by n, and not by a variable that may be too large to grow.
  const double first = std::ceil(low / step - 1e-9);
  std::vector<double> ticks;
  for (int i = 0; i <= 2 * n; ++i) {
    const double tick = (first + i) * step;
    if (!(tick <= high + 1e-9 * step)) break;
    if (ticks.empty() || tick > ticks.back()) ticks.push_back(tick == 0 ? 0 : tick);
  }
  return ticks.empty() ? std::vector<double>{low} : ticks;
}

std::string tick_text(double value, double step) {
  if (value == 0) return "0";
  const double size = std::max(std::abs(value), std::abs(step));
  if (std::max(size, 3 * std::abs(step)) < 1e-4) return fmt::format("{:.2g}", value);
  if (size >= 1e15) return fmt::format("{:.2g}", value);
  constexpr std::pair<double, const char*> kUnits[] = {
      {1e12, "T"}, {1e9, "G"}, {1e6, "M"}, {1e4, "k"}};
  for (const auto& [from, letter] : kUnits)
    if (size >= from) {
      const double unit = from == 1e4 ? 1e3 : from;
      return fmt::format("{:.4g}{}", value / unit, letter);
    }
  int digits = 0;
  for (double s = std::abs(step); digits < 6 && std::abs(s - std::round(s)) > 1e-6 * s; s *= 10)
    ++digits;
  return fmt::format("{:.{}f}", value, digits);
}

std::string number_text(double value) {
  if (!std::isfinite(value)) return "not finite";
  const double size = std::abs(value);
  if (size >= 1e15) return fmt::format("{:.3g}", value);
  if (size >= 1e9) return tick_text(value, value);
  if (size >= 1e3) return format_count(clamped_integer(std::round(value)));
  return fmt::format("{:.{}g}", value, size < 1e-3 ? 2 : 4);
}

std::vector<CurveColumn> running_mean(const std::vector<CurveColumn>& columns) {
  const std::size_t n = columns.size(), most = std::max<std::size_t>(2, n / 40);
  std::vector<CurveColumn> means = columns;
  for (std::size_t i = 0; i < n; ++i) {
    const std::size_t reach = std::min({most, i / 4, n - 1 - i});  // losses fall steeply at first
    double sum = 0;
    for (std::size_t k = i - reach; k <= i + reach; ++k) sum += columns[k].mean;
    means[i].mean = sum / static_cast<double>(2 * reach + 1);
  }
  return means;
}

std::vector<CurveColumn> decimate(const Curve& curve, double from, double to, int columns) {
  std::vector<CurveColumn> result;
  const double width = (to - from) / columns;
  const bool all = curve.x.size() <= static_cast<std::size_t>(columns) || !(width > 0);
  std::int64_t column = -1;
  double count = 0;
  for (std::size_t i = 0; i < curve.x.size(); ++i) {
    const double x = curve.x[i], y = curve.y[i];
    if (!std::isfinite(y)) continue;
    const auto mine = all ? static_cast<std::int64_t>(i)
                          : std::min<std::int64_t>(clamped_integer((x - from) / width), columns);
    if (result.empty() || mine != column) {
      result.push_back({x, y, y, y});
      column = mine;
      count = 1;
      continue;
    }
    CurveColumn& c = result.back();
    ++count;
    c.x += (x - c.x) / count;
    c.mean += (y - c.mean) / count;
    c.low = std::min(c.low, y);
    c.high = std::max(c.high, y);
  }
  return result;
}

namespace {

// Sizes in units of the picture, which the page scales to its column.
constexpr double kWidth = 480, kHeight = 250, kLeft = 60, kRight = 20, kTop = 12, kBottom = 42;
constexpr double kPlotWidth = kWidth - kLeft - kRight, kPlotHeight = kHeight - kTop - kBottom;
static_assert(kPlotWidth == kColumns);

/// The mapping of values to positions in the picture.
class Plane {
 public:
  explicit Plane(const Chart& chart) : log_(chart.logarithmic) {
    for (const ChartSeries& s : chart.series)
      for (std::size_t i = 0; i < s.curve.x.size(); ++i) include(s.curve.x[i], s.curve.y[i]);
    if (empty()) return;
    if (chart.from_zero) low_ = std::min(low_, 0.0), high_ = std::max(high_, 0.0);
    const double span = high_ - low_;
    const double least = std::max(std::abs(high_), 1e-12) * 1e-3;
    if (span < least) {
      high_ += least + 0.05 * std::abs(high_);
      if (!chart.from_zero) low_ -= least + 0.05 * std::abs(low_);
    } else {
      high_ += 0.05 * span;
      if (!chart.from_zero) low_ -= 0.04 * span;
    }
    if (right_ <= left_) left_ -= 0.5, right_ += 0.5;
  }
  bool empty() const { return !(high_ >= low_); }
  double x(double value) const { return kLeft + (value - left_) / (right_ - left_) * kPlotWidth; }
  double y(double value) const {
    return kTop + (1 - (mapped(value) - low_) / (high_ - low_)) * kPlotHeight;
  }
  double left() const { return left_; }
  double right() const { return right_; }
  std::vector<double> y_ticks() const {
    if (!log_) return round_ticks(low_, high_, 5);
    std::vector<double> ticks;
    const bool fine = high_ - low_ < 2.6;
    const int every = std::max(1, static_cast<int>(std::ceil((high_ - low_) / 7)));
    const int first = every * static_cast<int>(std::floor(low_ / every));
    for (int power = first; power <= high_; power += every)
      for (const double factor : {1.0, 2.0, 5.0}) {
        const double value = factor * std::pow(10, power);
        if ((factor == 1 || fine) && mapped(value) >= low_ && mapped(value) <= high_)
          ticks.push_back(value);
      }
    return ticks;
  }
  bool shows(double value) const { return std::isfinite(mapped(value)); }

 private:
  double mapped(double value) const { return log_ ? std::log10(value) : value; }
  void include(double at, double value) {
    left_ = std::min(left_, at);
    right_ = std::max(right_, at);
    if (!shows(value)) return;
    low_ = std::min(low_, mapped(value));
    high_ = std::max(high_, mapped(value));
  }

  bool log_;
  double left_ = INFINITY, right_ = -INFINITY, low_ = INFINITY, high_ = -INFINITY;
};

std::string y_axis(const Chart& chart, const Plane& plane) {
  std::string out;
  const std::vector<double> ticks = plane.y_ticks();
  const double step = ticks.size() > 1 ? ticks[1] - ticks[0] : ticks.empty() ? 1 : ticks[0];
  for (const double tick : ticks) {
    const double y = plane.y(tick);
    out += fmt::format("<path class=g d=\"M{} {:.1f}H{}\"/><text x={} y={:.1f} class=e>{}</text>",
                       kLeft, y, kWidth - kRight, kLeft - 6, y + 4,
                       tick_text(tick, chart.logarithmic ? tick : step));
  }
  return out;
}

std::string x_axis(const Chart& chart, const Plane& plane) {
  std::string out =
      fmt::format("<path class=a d=\"M{} {}H{}\"/>", kLeft, kHeight - kBottom, kWidth - kRight);
  std::vector<double> ticks =
      chart.x_ticks.empty() ? round_ticks(plane.left(), plane.right(), 5) : chart.x_ticks;
  // Steps and ranks are integers.
  std::erase_if(ticks, [](double tick) { return tick != std::floor(tick); });
  const double step = ticks.size() > 1 ? ticks[1] - ticks[0] : 1;
  for (const double tick : ticks)
    out += fmt::format("<text x={:.1f} y={} class=m>{}</text>", plane.x(tick),
                       kHeight - kBottom + 17, tick_text(tick, step));
  return out + fmt::format("<text x={} y={} class=m>{}</text>", kLeft + kPlotWidth / 2, kHeight - 6,
                           escape_html(chart.x_label));
}

/// A dot, square, triangle or diamond, depending on the round.
std::string mark(const ChartSeries& series, double x, double y) {
  if (series.round == 0)
    return fmt::format("<circle class=f{} cx={:.1f} cy={:.1f} r=3 />", series.colour, x, y);
  const char* shape = series.round == 1   ? "m-3.5-3.5h7v7h-7z"
                      : series.round == 2 ? "m0-4.5l4.2 7.5h-8.4z"
                                          : "m0-5l5 5l-5 5l-5-5z";
  return fmt::format("<path class=f{} d=\"M{:.1f} {:.1f}{}\"/>", series.colour, x, y, shape);
}

/// The classes of the path of a series.
std::string line_class(const ChartSeries& series) {
  std::string text = fmt::format("l s{}", series.colour);
  if (series.dashed) return text + " d";
  return series.round > 0 ? fmt::format("{} r{}", text, series.round) : text;
}

std::string line(const ChartSeries& series, const Plane& plane) {
  std::vector<CurveColumn> columns = decimate(series.curve, plane.left(), plane.right(), kColumns);
  std::erase_if(columns,
                [&](const CurveColumn& c) { return !plane.shows(c.low) || !plane.shows(c.mean); });
  if (columns.empty()) return {};
  std::string middle, up, down, points;
  bool spread = false;
  for (std::size_t i = 0; i < columns.size(); ++i) {
    const CurveColumn &c = columns[i], &back = columns[columns.size() - 1 - i];
    middle += fmt::format("{}{:.1f} {:.1f}", i ? "L" : "M", plane.x(c.x), plane.y(c.mean));
    up += fmt::format("{}{:.1f} {:.1f}", i ? "L" : "M", plane.x(c.x), plane.y(c.high));
    down += fmt::format("L{:.1f} {:.1f}", plane.x(back.x), plane.y(back.low));
    spread = spread || c.high > c.low;
    if (series.dots || columns.size() == 1) points += mark(series, plane.x(c.x), plane.y(c.mean));
  }
  std::string out;
  const bool pale = series.noisy && columns.size() >= kSmoothed && !spread;
  if (pale) {
    out += fmt::format("<path class=\"l p s{}\" d=\"{}\"/>", series.colour, middle);
    middle.clear();
    for (const CurveColumn& c : running_mean(columns))
      middle +=
          fmt::format("{}{:.1f} {:.1f}", middle.empty() ? "M" : "L", plane.x(c.x), plane.y(c.mean));
  }
  if (spread) out += fmt::format("<path class=\"f{} b\" d=\"{}{}Z\"/>", series.colour, up, down);
  out += fmt::format("<path class=\"{}\" d=\"{}\"/>", line_class(series), middle);
  return out + points;
}

/// The series of a stack as areas between neighbouring sums.
std::string areas(const Chart& chart, const Plane& plane) {
  std::string out;
  for (std::size_t s = chart.series.size(); s-- > 0;) {
    const auto columns = decimate(chart.series[s].curve, plane.left(), plane.right(), kColumns);
    if (columns.empty()) continue;
    std::string path = fmt::format("M{:.1f} {:.1f}", plane.x(columns.front().x), plane.y(0));
    for (const CurveColumn& c : columns)
      path += fmt::format("L{:.1f} {:.1f}", plane.x(c.x), plane.y(c.mean));
    path += fmt::format("L{:.1f} {:.1f}Z", plane.x(columns.back().x), plane.y(0));
    out += fmt::format("<path class=\"f{} o\" d=\"{}\"/>", chart.series[s].colour, path);
  }
  return out;
}

/// Adds to each series the ones before it; missing values count as 0.
Chart summed(Chart chart) {
  for (std::size_t s = 1; s < chart.series.size(); ++s) {
    Curve& curve = chart.series[s].curve;
    const Curve& below = chart.series[s - 1].curve;
    for (std::size_t i = 0; i < std::min(curve.y.size(), below.y.size()); ++i)
      curve.y[i] = (std::isfinite(curve.y[i]) ? curve.y[i] : 0) + below.y[i];
  }
  return chart;
}

}  // namespace

std::string escape_html(std::string_view given) {
  std::string out;
  for (const char c : printable(given)) switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      case '\'':
        out += "&#39;";
        break;
      default:
        out += c;
    }
  return out;
}

std::string legend_key(int colour, const std::string& label, bool dashed) {
  return fmt::format("<span class=key><i class=\"{}{}\"></i>{}</span>", dashed ? "dash b" : "f",
                     colour, escape_html(label));
}

void take_turn(ChartSeries& series, std::size_t index, int colours) {
  const auto all = static_cast<std::size_t>(colours);
  series.colour = static_cast<int>(index % all);
  series.round = static_cast<int>(index / all % kRounds);
}

namespace {

/// Like legend_key(); from the second round on with a piece of the line and its mark.
std::string series_key(const ChartSeries& series) {
  if (series.round == 0 || series.dashed)
    return legend_key(series.colour, series.label, series.dashed);
  return fmt::format(
      "<span class=key><svg viewBox=\"0 0 34 12\"><path class=\"{}\" d=\"M0 6H34\"/>{}</svg>"
      "{}</span>",
      line_class(series), series.dots ? mark(series, 17, 6) : "", escape_html(series.label));
}

double shown_value(const Curve& curve, Chart::Shown shown) {
  if (shown != Chart::Shown::last) return median_of_lines(curve.y);
  const auto last =
      std::find_if(curve.y.rbegin(), curve.y.rend(), [](double y) { return std::isfinite(y); });
  return last == curve.y.rend() ? NAN : *last;
}

std::string caption(const Chart& chart) {
  std::string out = fmt::format("<figcaption><span><b>{}</b> {}</span>", escape_html(chart.title),
                                escape_html(chart.unit));
  const bool values = chart.shown != Chart::Shown::none;
  if (values) out += chart.shown == Chart::Shown::last ? "<span>last" : "<span>median";
  if (values && chart.series.size() == 1)
    out += " <b>" + number_text(shown_value(chart.series[0].curve, chart.shown)) + "</b>";
  if (values && chart.series.size() > 1) out += " in bold";
  out += values ? "</span></figcaption>" : "</figcaption>";
  if (chart.series.size() < 2) return out;
  out += "<div class=keys>";
  for (const ChartSeries& s : chart.series) {
    if (s.label.empty()) continue;
    std::string key = series_key(s);
    if (values)
      key.insert(key.rfind("</span>"),
                 " <b>" + number_text(shown_value(s.curve, chart.shown)) + "</b>");
    out += key;
  }
  return out + "</div>";
}

/// The drawn values as JSON, for the script of the page that shows those under the pointer: the
/// plot in units of the picture, the x of its ends, and of each series name, colour, x and y.
std::string values_json(const Chart& chart, const Plane& plane) {
  nlohmann::ordered_json json{{"at", {kLeft, kPlotWidth, kWidth}},
                              {"x", {plane.left(), plane.right()}},
                              {"unit", chart.x_label},
                              {"series", nlohmann::ordered_json::array()}};
  const auto rounded = [](double value) {
    return std::strtod(fmt::format("{:.6g}", value).c_str(), nullptr);
  };
  for (const ChartSeries& s : chart.series) {
    nlohmann::ordered_json x = nlohmann::ordered_json::array(), y = x;
    for (const CurveColumn& c : decimate(s.curve, plane.left(), plane.right(), kColumns)) {
      x.push_back(rounded(c.x));
      y.push_back(rounded(c.mean));
    }
    json["series"].push_back({{"name", s.label}, {"colour", s.colour}, {"x", x}, {"y", y}});
  }
  return dumped_safely(json);
}

}  // namespace

std::string to_html(const Chart& given) {
  const Chart chart = given.stacked ? summed(given) : given;
  const Plane plane(chart);
  if (plane.empty()) return {};
  std::string out = "<figure>" + caption(chart);
  out += fmt::format(
      "<svg class=chart viewBox=\"0 0 {} {}\" role=img aria-label=\"{}\" data-values=\"{}\">",
      kWidth, kHeight, escape_html(chart.title), escape_html(values_json(given, plane)));
  out += y_axis(chart, plane);
  if (chart.stacked) out += areas(chart, plane);
  out += x_axis(chart, plane);
  for (const ChartMark& mark : chart.marks)
    if (mark.x >= plane.left() && mark.x <= plane.right())
      out += fmt::format("<path class=v d=\"M{:.1f} {}V{}\"><title>{}</title></path>",
                         plane.x(mark.x), kTop, kHeight - kBottom, escape_html(mark.text));
  if (!chart.stacked)
    for (const ChartSeries& s : chart.series) out += line(s, plane);
  out += "</svg>";
  if (!chart.note.empty()) out += fmt::format("<p class=note>{}</p>", escape_html(chart.note));
  return out + "</figure>\n";
}

std::string bar(const std::string& label, const std::string& amount,
                const std::vector<BarPart>& parts, double full) {
  std::string out = fmt::format(
      "<div class=row><span class=name>{}</span><span class=amount>{}</span><div class=bar>",
      escape_html(label), escape_html(amount));
  for (const BarPart& part : parts)
    if (part.value > 0 && full > 0)
      out += fmt::format("<i class=f{} style=\"width:{:.2f}%\" title=\"{}\"></i>", part.colour,
                         100 * part.value / full, escape_html(part.label));
  return out + "</div></div>\n";
}

}  // namespace choir::report
