// choir calibrate [--out FILE.json] [--precision P ...]
#include <fmt/core.h>

#include <algorithm>

#include "choir/nn/parameter_set.hpp"
#include "src/app/bench.hpp"
#include "src/comm/agreement.hpp"
#include "src/core/output.hpp"
#include "src/core/text.hpp"
#include "src/device/cpu_device.hpp"
#include "src/lab/calibrate/calibrate.hpp"
#include "src/store/directory.hpp"

namespace choir {
namespace {

struct CalibrateRequest {
  std::string out = "calibration.json";
  CalibrateOptions options;
};

/// A line on bf16 where the processor multiplies it and it was not measured: the quickstart trains
/// in this precision there. It is not measured by default because each precision takes as long as
/// the first.
std::string unmeasured_text(const CalibrateRequest& request) {
  const CpuFeatures& cpu = cpu_features();
  const std::vector<std::string>& measured = request.options.precisions;
  if (!(cpu.avx512_bf16 || cpu.amx_bf16) || std::ranges::count(measured, "bf16-mixed") > 0)
    return "";
  return fmt::format(
      "this processor also multiplies in bf16: for decks with train.precision=bf16-mixed, measure "
      "both with --precision {} --precision bf16-mixed\n",
      join(measured, " --precision "));
}

int run_calibrate(MpiSession& session, const CalibrateRequest& request) {
  if (const auto wrong = wrong_launcher(session.size()))
    throw CommError(*wrong, "`choir doctor` shows details");
  Workplace place;
  const Layout flat(1, 1, session.size(), 1);
  place.mesh = Mesh::over_world(flat, Transport::mpi);
  Layout layout;
  together(place.mesh->world(), [&] {
    layout = calibration_layout(session.size(), place.mesh->nodes());
    if (session.rank() == 0) BenchFiles{.json = request.out}.require_writable();
  });
  choose_threads(place.mesh->node());
  place.mesh = Mesh::over_world(layout, Transport::automatic);
  place.device = bench_device("cpu", *place.mesh);
  Logger log(session.rank() == 0);
  if (request.out != "-") log.to_stdout();
  const Calibration measured = calibrate(*place.mesh, *place.device, log, request.options);
  if (session.rank() != 0) return 0;
  BenchFiles{.json = request.out}.write("", to_json(measured));
  if (request.out != "-")
    print_safely("{}written: {} (choir plan DECK.json --calibration {})\n{}", to_string(measured),
                 request.out, request.out, unmeasured_text(request));
  return 0;
}

}  // namespace

int calibrate_command(const Invocation& call) {
  CommandLine app(
      "Measures the processors of this machine in one to four minutes: products, attention, other "
      "ops, messages. Start it with as many ranks as training will use per node. `choir plan "
      "--calibration FILE` predicts step times from the result. For cards that are not at hand, "
      "`choir plan --calibration assumed` uses the vendor's figures.",
      "choir calibrate");
  CalibrateRequest request{.options = {.families = call.families}};
  Arguments precisions;
  app.add_option("--out", request.out, "file to write; -: standard output").shows_default();
  app.add_option("--precision", precisions,
                 "train.precision of decks to be planned; may be repeated (default: fp32)")
      .checked([](const std::string& word) -> std::string {
        try {
          precision_of(word);
          return "";
        } catch (const Error& error) {
          return error.what();
        }
      });
  app.add_flag(
      "--brief", request.options.brief,
      "measure for only a few seconds: fewer shapes and sizes, far less accurate predictions");
  if (const auto code = parse(app, call)) return *code;
  if (!precisions.empty()) request.options.precisions = precisions;
  return with_mpi([&](MpiSession& session) { return run_calibrate(session, request); });
}

}  // namespace choir
