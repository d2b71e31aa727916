// choir bench reader
#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "choir/app/bench.hpp"
#include "choir/app/session.hpp"
#include "choir/comm/agreement.hpp"
#include "choir/core/error.hpp"
#include "choir/core/plural.hpp"
#include "choir/core/text.hpp"
#include "choir/data/tokens/bench_readers.hpp"
#include "choir/device/cpu_device.hpp"

namespace choir {
namespace {

struct Request {
  std::string folder = ".";
  std::int64_t bytes = std::int64_t{1} << 30;
  int rounds = 5;
  BenchFiles files;
};

struct Report {
  std::int64_t bytes = 0;
  int ranks = 1;
  std::string folder, provenance;
  std::vector<ReaderSpeed> rows;

  bool valid() const {
    return std::all_of(rows.begin(), rows.end(), [](const auto& row) { return row.wrong == 0; });
  }
};

constexpr double kKiB = 1 << 10, kMiB = 1 << 20;

std::string to_json(const Report& report) {
  nlohmann::ordered_json json{
      {"bench", "reader"}, {"valid", report.valid()}, {"folder", report.folder}};
  json["rows"] = nlohmann::ordered_json::array();
  for (const ReaderSpeed& r : report.rows)
    json["rows"].push_back({{"reader", r.reader},
                            {"ranks", report.ranks},
                            {"bytes", report.bytes},
                            {"block_bytes", r.block_bytes},
                            {"seconds", r.seconds},
                            {"rounds", r.rounds},
                            {"gb_per_s", r.gb_per_s},
                            {"ratio", r.ratio},
                            {"wrong", r.wrong}});
  json["provenance"] = nlohmann::ordered_json::parse(report.provenance);
  return json.dump() + "\n";
}

std::string to_csv(const Report& report) {
  std::string text =
      "access,bw_mib_s,iops,latency_s,block_kib,xfer_kib,total_s,iter,of_pread,wrong\n";
  for (const ReaderSpeed& r : report.rows)
    for (std::size_t i = 0; i < r.rounds.size(); ++i) {
      const double s = r.rounds[i];
      text += fmt::format("{},{:.2f},{:.2f},{:.6f},{:.0f},{:.0f},{:.6f},{},{:.4f},{}\n", r.reader,
                          static_cast<double>(report.bytes) / kMiB / s,
                          static_cast<double>(r.reads) / s,
                          s * report.ranks / static_cast<double>(r.reads),
                          static_cast<double>(report.bytes) / report.ranks / kKiB,
                          static_cast<double>(r.block_bytes) / kKiB, s, i, r.ratio, r.wrong);
    }
  return text;
}

std::string summary(const Report& report, const ReaderSpeed& r) {
  const double mib = static_cast<double>(report.bytes) / kMiB;
  double low = 1e300, high = 0, sum = 0, squares = 0;
  for (const double s : r.rounds) {
    low = std::min(low, mib / s);
    high = std::max(high, mib / s);
    sum += mib / s;
  }
  const auto n = static_cast<double>(r.rounds.size());
  for (const double s : r.rounds) squares += std::pow(mib / s - sum / n, 2);
  return fmt::format("  {:<12} {:>11.2f} {:>11.2f} {:>11.2f} {:>11.2f} {:>10.4f} {:>8.0f} %\n",
                     r.reader, high, low, sum / n, std::sqrt(squares / n), r.seconds,
                     100 * r.ratio);
}

std::string to_text(const Report& report) {
  std::string text = fmt::format(
      "# {} in the page cache, {}, each its own part of one file; the reads of the round "
      "before were checked\n# {:<12} {:>11} {:>10} {:>11} {:>11} {:>11} {:>10} {:>5}\n",
      format_bytes(static_cast<double>(report.bytes)), counted(report.ranks, "rank"), "access",
      "bw(MiB/s)", "IOPS", "Latency(s)", "block(KiB)", "xfer(KiB)", "total(s)", "iter");
  for (const ReaderSpeed& r : report.rows)
    for (std::size_t i = 0; i < r.rounds.size(); ++i) {
      const double s = r.rounds[i];
      text += fmt::format(
          "  {:<12} {:>11.2f} {:>10.2f} {:>11.6f} {:>11.0f} {:>11.0f} {:>10.4f} "
          "{:>5}\n",
          r.reader, static_cast<double>(report.bytes) / kMiB / s, static_cast<double>(r.reads) / s,
          s * report.ranks / static_cast<double>(r.reads),
          static_cast<double>(report.bytes) / report.ranks / kKiB,
          static_cast<double>(r.block_bytes) / kKiB, s, i);
    }
  text += fmt::format("# {:<12} {:>11} {:>11} {:>11} {:>11} {:>10} {:>10}\n", "access", "Max(MiB)",
                      "Min(MiB)", "Mean(MiB)", "StdDev", "median(s)", "of pread");
  std::int64_t wrong = 0;
  for (const ReaderSpeed& r : report.rows) {
    text += summary(report, r);
    wrong += r.wrong;
  }
  return text + fmt::format("{}: {}, {} wrong\n", report.valid() ? "VALID" : "INVALID",
                            counted(report.rows.size(), "reader"), counted(wrong, "block"));
}

int run(MpiSession& session, const Request& request) {
  const auto mesh = Mesh::over_world(Layout(1, 1, session.size(), 1), Transport::automatic);
  together(mesh->world(), [&] {
    if (session.rank() == 0) request.files.require_writable();
  });
  const CpuDevice host;
  Report report{.bytes = request.bytes,
                .ranks = session.size(),
                .folder = request.folder,
                .provenance = bench_provenance(*mesh, host, "", {})};
  report.rows = bench_readers(mesh->world(), request.folder, request.bytes, request.rounds);
  if (session.rank() != 0) return report.valid() ? 0 : static_cast<int>(ExitCode::other);
  if (request.files.table()) fmt::print("{}", to_text(report));
  return request.files.finish(to_csv(report), to_json(report), report.valid());
}

}  // namespace

int bench_reader_command(const Arguments& arguments) {
  CommandLine app(
      "The token readers on a file in the page cache, against plain pread; as IOR prints.",
      "choir bench reader");
  Request request;
  app.add_option("--bytes", request.bytes, "size of the file")
      .within(std::int64_t{1} << 20, std::int64_t{1} << 40);
  app.add_option("--rounds", request.rounds, "measurements of each").within(1, 1000);
  app.add_option("--folder", request.folder, "where the file is written, and removed again");
  request.files.add_to(app);
  if (const auto code = parse(app, arguments)) return *code;
  return with_mpi([&](MpiSession& session) { return run(session, request); });
}

}  // namespace choir
