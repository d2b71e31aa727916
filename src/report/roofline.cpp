// The roofline of a machine: the rate that a kernel can reach is the lower of the peak and of its
// intensity (FLOPs per byte) times the bandwidth. Source: Williams, Waterman, Patterson, "Roofline:
// an insightful visual performance model for multicore architectures", CACM 52 (2009).
#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <fstream>
#include <functional>
#include <sstream>

#include "choir/core/error.hpp"
#include "src/core/file.hpp"
#include "src/core/text.hpp"
#include "src/report/report_page.hpp"
#include "src/report/svg_chart.hpp"

namespace choir::report {
namespace {

constexpr std::string_view kKernelHeader = "bench,name,variant,shape,dtype,us,";

/// Columns of a line by the names in the header.
class CsvLine {
 public:
  CsvLine(const std::vector<std::string>& header, const std::string& line)
      : header_(header), cells_(split_csv(line)) {}

  std::string text(const char* column) const {
    const auto found = std::ranges::find(header_, column);
    const auto at = static_cast<std::size_t>(found - header_.begin());
    return at < cells_.size() ? cells_[at] : "";
  }
  double number(const char* column) const {
    const double value = std::strtod(text(column).c_str(), nullptr);
    return std::isfinite(value) ? value : 0;
  }

 private:
  const std::vector<std::string>& header_;
  std::vector<std::string> cells_;
};

/// A point of the chart.
struct Mark {
  std::string label;  ///< tooltip
  double intensity = 0, rate = 0;
  int colour = 0;
  bool phase = false;  ///< of a step, with a name beside it
};

constexpr double kWidth = 720, kHeight = 360, kLeft = 64, kRight = 150, kTop = 12, kBottom = 42;

/// Logarithmic axes around the points and the ridges of the roofs.
class LogPlane {
 public:
  void include(double x, double y) {
    left_ = std::min(left_, std::log10(x)), right_ = std::max(right_, std::log10(x));
    low_ = std::min(low_, std::log10(y)), high_ = std::max(high_, std::log10(y));
  }
  void widen() {
    left_ = std::floor(left_), right_ = std::max(std::ceil(right_), left_ + 1);
    low_ = std::floor(low_), high_ = std::max(std::ceil(high_), low_ + 1);
  }
  double x(double value) const {
    return kLeft + (std::log10(value) - left_) / (right_ - left_) * (kWidth - kLeft - kRight);
  }
  double y(double value) const {
    return kTop + (high_ - std::log10(value)) / (high_ - low_) * (kHeight - kTop - kBottom);
  }
  double left() const { return std::pow(10, left_); }
  double right() const { return std::pow(10, right_); }

  std::string axes() const {
    std::string out;
    for (double power = low_; power <= high_; ++power)
      out += fmt::format("<path class=g d=\"M{} {:.1f}H{}\"/><text x={} y={:.1f} class=e>{}</text>",
                         kLeft, y(std::pow(10, power)), kWidth - kRight, kLeft - 6,
                         y(std::pow(10, power)) + 4, number_text(std::pow(10, power - 9)));
    for (double power = left_; power <= right_; ++power)
      out += fmt::format("<text x={:.1f} y={} class=m>{}</text>", x(std::pow(10, power)),
                         kHeight - kBottom + 17, number_text(std::pow(10, power)));
    return out + fmt::format(
                     "<path class=a d=\"M{} {}H{}\"/><text x={} y={} class=m>intensity, FLOP per "
                     "byte</text>",
                     kLeft, kHeight - kBottom, kWidth - kRight,
                     kLeft + (kWidth - kLeft - kRight) / 2, kHeight - 6);
  }

 private:
  double left_ = INFINITY, right_ = -INFINITY, low_ = INFINITY, high_ = -INFINITY;
};

/// The lower of the roofs that were measured; 0: none was.
double roof_of(const KernelTable& table, double peak, double intensity) {
  if (!(table.bandwidth > 0)) return peak;
  return peak > 0 ? std::min(peak, intensity * table.bandwidth) : intensity * table.bandwidth;
}

double highest_peak(const KernelTable& table) {
  double peak = 0;
  for (const auto& [dtype, each] : table.peaks) peak = std::max(peak, each);
  return peak;
}

/// The highest roof of a kernel: of its type if the file has products of this type.
double peak_of(const KernelTable& table, const std::string& dtype) {
  const auto own = table.peaks.find(dtype);
  return own != table.peaks.end() ? own->second : highest_peak(table);
}

std::vector<Mark> marks_of(const KernelTable& table, const std::vector<ReportedRun>& runs) {
  std::vector<Mark> marks;
  for (const KernelRow& row : table.rows) {
    const double roof = roof_of(table, peak_of(table, row.dtype), row.intensity());
    std::string share;
    if (roof > 0)
      share = fmt::format(", {:.0f} % of {}", 100 * row.rate() / roof,
                          table.bandwidth > 0 ? "its roof" : "the rate of a large product");
    marks.push_back(
        {fmt::format("{} {} {}: {} GFLOP/s at {} FLOP/byte{}", row.name, row.shape, row.dtype,
                     number_text(row.rate() / 1e9), number_text(row.intensity()), share),
         row.intensity(), row.rate(),
         row.bench == "ops"    ? 0
         : row.bench == "gemm" ? 1
                               : 2,
         false});
  }
  for (const ReportedRun& run : runs)
    for (const PhaseOfStep& phase : run.start.work) {
      const Curve& seconds = run.curve(phase.phase == "forward"    ? "dtf"
                                       : phase.phase == "backward" ? "dtb"
                                                                   : phase.phase);
      std::vector<double> values;
      for (const double value : seconds.y)
        if (value > 0) values.push_back(value);  // not NaN
      if (values.empty() || !(phase.flops > 0) || !(phase.bytes > 0)) continue;
      std::ranges::nth_element(values, values.begin() + std::ssize(values) / 2);
      const double rate = phase.flops / values[values.size() / 2];
      marks.push_back(
          {fmt::format("{} of a step of {}: {} GFLOP/s at {} FLOP/byte (caches ignored)",
                       phase.phase, run.name, number_text(rate / 1e9),
                       number_text(phase.flops / phase.bytes)),
           phase.flops / phase.bytes, rate, 3, true});
    }
  return marks;
}

std::string roofs(const KernelTable& table, const LogPlane& plane) {
  std::string out;
  std::vector<std::pair<double, std::string>> peaks;  // the highest first
  for (const auto& [dtype, peak] : table.peaks) peaks.emplace_back(peak, dtype);
  std::ranges::sort(peaks, std::greater<>());
  constexpr double kLineHeight = 14;
  double lowest = -kLineHeight;  // of the names so far, which must not overlap
  for (const auto& [peak, dtype] : peaks) {
    const double ridge =
        table.bandwidth > 0 ? std::max(plane.left(), peak / table.bandwidth) : plane.left();
    out += fmt::format("<path class=\"l s4\" d=\"M{:.1f} {:.1f}H{:.1f}\"/>", plane.x(ridge),
                       plane.y(peak), plane.x(plane.right()));
    lowest = std::max(plane.y(peak) + 4, lowest + kLineHeight);
    out += fmt::format("<text x={:.1f} y={:.1f}>{} {} GFLOP/s</text>", plane.x(plane.right()) + 6,
                       lowest, escape_html(dtype), number_text(peak / 1e9));
  }
  if (!(table.bandwidth > 0)) return out;
  const double end = table.peaks.empty()
                         ? plane.right()
                         : std::min(plane.right(), highest_peak(table) / table.bandwidth);
  return out + fmt::format(
                   "<path class=\"l s4\" d=\"M{:.1f} {:.1f}L{:.1f} {:.1f}\"><title>{} GB/s"
                   "</title></path>",
                   plane.x(plane.left()), plane.y(plane.left() * table.bandwidth), plane.x(end),
                   plane.y(end * table.bandwidth), number_text(table.bandwidth / 1e9));
}

std::string chart(const KernelTable& table, const std::vector<Mark>& marks) {
  LogPlane plane;
  for (const Mark& mark : marks) plane.include(mark.intensity, mark.rate);
  for (const auto& [dtype, peak] : table.peaks)
    if (table.bandwidth > 0) plane.include(2 * peak / table.bandwidth, peak);
  plane.widen();
  std::string out =
      fmt::format("<svg class=chart viewBox=\"0 0 {} {}\" role=img aria-label=roofline>", kWidth,
                  kHeight) +
      plane.axes() + roofs(table, plane);
  for (const Mark& mark : marks) {
    const double x = plane.x(mark.intensity), y = plane.y(mark.rate);
    out += mark.phase
               ? fmt::format("<path class=f{} d=\"M{:.1f} {:.1f}m0-6l6 6l-6 6l-6-6z\">",
                             mark.colour, x, y)
               : fmt::format("<circle class=f{} cx={:.1f} cy={:.1f} r=3.5>", mark.colour, x, y);
    out += fmt::format("<title>{}</title></{}>", escape_html(mark.label),
                       mark.phase ? "path" : "circle");
  }
  return out + "</svg>";
}

/// The kernels that are farthest below their roof, weighted by the time of a call.
std::string table_of(const KernelTable& table) {
  std::vector<const KernelRow*> rows;
  for (const KernelRow& row : table.rows) rows.push_back(&row);
  const auto share = [&](const KernelRow& row) {
    return row.rate() / roof_of(table, peak_of(table, row.dtype), row.intensity());
  };
  std::ranges::sort(rows, [&](const KernelRow* a, const KernelRow* b) {
    return a->seconds * (1 - share(*a)) > b->seconds * (1 - share(*b));
  });
  constexpr std::size_t kShown = 12;
  if (rows.size() > kShown) rows.resize(kShown);
  std::string out =
      "<table><tr><th>kernel<th>shape<th>type<th>us<th>FLOP/byte<th>GFLOP/s<th>of its roof</tr>";
  for (const KernelRow* row : rows)
    out += fmt::format("<tr><td>{}<td>{}<td>{}<td>{:.1f}<td>{}<td>{}<td>{:.0f} %</tr>",
                       escape_html(row->name), escape_html(row->shape), escape_html(row->dtype),
                       1e6 * row->seconds, number_text(row->intensity()),
                       number_text(row->rate() / 1e9), 100 * share(*row));
  return out + "</table>";
}

}  // namespace

bool is_kernel_table(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  while (std::getline(file, line) && line.starts_with('#')) {
  }
  return line.starts_with(kKernelHeader);
}

KernelTable parse_kernels(const std::string& text, const std::string& path) {
  KernelTable table;
  table.path = path;
  std::istringstream lines(text);
  std::vector<std::string> header;
  for (std::string line; std::getline(lines, line);) {
    if (line.empty() || line.starts_with('#')) continue;
    if (line.starts_with(kKernelHeader)) {  // the files of several benches may stand in one
      header = split_csv(line);
      continue;
    }
    const CsvLine cells(header, line);
    KernelRow row{.bench = cells.text("bench"),
                  .name = std::string(trim(cells.text("name") + " " + cells.text("variant"))),
                  .shape = cells.text("shape"),
                  .dtype = cells.text("dtype"),
                  .seconds = 1e-6 * cells.number("us"),
                  .flops = cells.number("flops"),
                  .bytes = cells.number("bytes")};
    const bool of_bytes = cells.text("unit") == "GB/s";
    const double ceiling =
        cells.number("fraction") > 0
            ? cells.number("rate") * (of_bytes ? 1e9 : 1e12) / cells.number("fraction")
            : 0;
    if (of_bytes) table.bandwidth = std::max(table.bandwidth, ceiling);
    if (!of_bytes && ceiling > 0)
      table.peaks[row.dtype] = std::max(table.peaks[row.dtype], ceiling);
    if (table.device.empty()) table.device = cells.text("device");
    if (table.noise.empty()) table.noise = cells.text("noise");
    if (cells.text("verdict") == "VALID" && row.seconds > 0 && row.flops > 0 && row.bytes > 0)
      table.rows.push_back(std::move(row));
    else
      ++table.left_out;
  }
  if (table.rows.empty())
    throw DataError(fmt::format("{}: none of its {} rows is VALID and has FLOPs and bytes", path,
                                table.left_out),
                    "files of older programs have no column 'bytes': measure again with `choir "
                    "bench ops --csv`");
  return table;
}

KernelTable read_kernels(const std::string& path) {
  constexpr std::int64_t kMostMiB = 64;
  return parse_kernels(read_whole_file(path, kMostMiB), path);
}

void add_kernels(std::vector<KernelTable>& tables, KernelTable more) {
  const auto same = std::ranges::find(tables, more.device, &KernelTable::device);
  if (same == tables.end()) {
    tables.push_back(std::move(more));
    return;
  }
  same->path += ", " + more.path;
  same->rows.insert(same->rows.end(), more.rows.begin(), more.rows.end());
  same->bandwidth = std::max(same->bandwidth, more.bandwidth);
  for (const auto& [dtype, peak] : more.peaks)
    same->peaks[dtype] = std::max(same->peaks[dtype], peak);
  same->left_out += more.left_out;
  if (same->noise.empty()) same->noise = more.noise;
}

std::string roofline_section(const KernelTable& table, const std::vector<ReportedRun>& runs) {
  const std::vector<Mark> marks = marks_of(table, runs);
  std::string legend;
  constexpr std::array<const char*, 4> kNames{"ops", "products", "attention", "phases of a step"};
  for (int colour = 0; colour < 4; ++colour)
    if (std::ranges::any_of(marks, [&](const Mark& mark) { return mark.colour == colour; }))
      legend += legend_key(colour, kNames[static_cast<std::size_t>(colour)]);
  std::string note = fmt::format("{}, from {}.", table.device, table.path);
  if (!(table.bandwidth > 0))
    note += " No row has a bandwidth: add the rows of `choir bench ops --csv`.";
  if (table.peaks.empty()) note += " No row has a peak: add the rows of `choir bench gemm --csv`.";
  if (table.left_out > 0)
    note +=
        fmt::format(" {} rows are left out: not VALID, or without FLOPs or bytes.", table.left_out);
  const bool above = std::ranges::any_of(table.rows, [&](const KernelRow& row) {
    const double roof = roof_of(table, peak_of(table, row.dtype), row.intensity());
    return roof > 0 && row.rate() > 1.05 * roof;
  });
  if (above)
    note +=
        " A kernel is above its roof where its tensors fit into caches, since the roof is that of "
        "memory, or where the roof was measured while other programs used the cores.";
  const std::string noisy =
      table.noise.empty() ? ""
                          : fmt::format("<p class=warn>NOISY: {}. Measure again on idle cores.</p>",
                                        escape_html(table.noise));
  return section("Roofline",
                 noisy + "<figure class=card><figcaption><span><b>Roofline</b> GFLOP/s</span>" +
                     legend + "</figcaption>" + chart(table, marks) + "</figure><p>" +
                     escape_html(note) + "</p>" +
                     (table.bandwidth > 0 && !table.peaks.empty() ? table_of(table) : ""));
}

}  // namespace choir::report
