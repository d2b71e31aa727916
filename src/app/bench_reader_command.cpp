// choir bench reader
#include "choir/comm/agreement.hpp"
#include "choir/core/error.hpp"
#include "choir/device/cpu_device.hpp"
#include "src/app/bench.hpp"

namespace choir {
namespace {

struct BenchReaderRequest {
  std::string folder = ".";
  std::int64_t bytes = std::int64_t{1} << 30;
  int rounds = 5;
  BenchFiles files;
};

int run_bench_reader(MpiSession& session, const BenchReaderRequest& request) {
  const auto mesh = Mesh::over_world(Layout(1, 1, session.size(), 1), Transport::automatic);
  together(mesh->world(), [&] {
    if (session.rank() == 0) request.files.require_writable();
  });
  const CpuDevice host;
  ReaderReport report{.bytes = request.bytes,
                      .ranks = session.size(),
                      .folder = request.folder,
                      .provenance = bench_provenance(*mesh, host, "", {})};
  report.rows = bench_readers(mesh->world(), request.folder, request.bytes, request.rounds);
  return finish_bench(session, request.files, report);
}

}  // namespace

int bench_reader_command(const Arguments& arguments) {
  CommandLine app(
      "Compares the token readers with plain pread on a file in the page cache; output as in IOR.",
      "choir bench reader");
  BenchReaderRequest request;
  app.add_option("--bytes", request.bytes, "size of the file")
      .within(std::int64_t{1} << 20, std::int64_t{1} << 40);
  app.add_option("--rounds", request.rounds, "measurements per reader").within(1, 1000);
  app.add_option("--folder", request.folder, "folder in which a temporary file is written");
  add_file_options(app, request.files);
  if (const auto code = parse(app, arguments)) return *code;
  return with_mpi([&](MpiSession& session) { return run_bench_reader(session, request); });
}

}  // namespace choir
