// choir doctor: checks this machine with this launcher.
#include <fmt/core.h>

#include "src/app/command_line.hpp"
#include "src/core/output.hpp"
#include "src/core/quantities.hpp"
#include "src/lab/doctor/doctor.hpp"
#include "src/models/gpt/tiny_training.hpp"
#include "src/run/run_setup.hpp"

namespace choir {
namespace {

void append(std::vector<Finding>& all, std::vector<Finding> more) {
  for (Finding& finding : more) all.push_back(std::move(finding));
}

void print_findings(const std::vector<Finding>& findings, const std::vector<RankFacts>& ranks,
                    bool json) {
  print_safely("{}\n", json ? to_json(findings, ranks) : to_text(findings));
}

/// Prints the present measurement to standard error; standard output has the report, which may be
/// JSON.
void tell(const MpiSession& session, const std::string& what) {
  if (session.rank() == 0) print_safely(stderr, "doctor: {} ...\n", what);
}

int examine(MpiSession& session, const std::string& folder, bool json) {
  std::vector<Finding> findings;
  // Without a common world, measurements of the processes would disturb each other.
  if (const auto wrong = wrong_launcher(session.size())) {
    findings.push_back(
        {Health::error, "launcher", *wrong,
         "ldd shows the MPI of this program; start it with the mpiexec of the same MPI"});
    append(findings, examine_software(session));
    print_findings(findings, {}, json);
    return static_cast<int>(ExitCode::communication);
  }
  const auto mesh = Mesh::over_world(Layout(1, 1, session.size(), 1), Transport::automatic);
  choose_threads(mesh->node());
  const auto ranks = gather_ranks(*mesh);
  const auto launched = launcher_world_size();
  findings.push_back(
      {Health::ok, "launcher",
       launched ? fmt::format("{} processes, one world", *launched) : "none: one process", ""});
  if (session.rank() == 0) {
    findings.push_back(examine_batch_system());
    findings.push_back(judge_ranks(ranks));
    append(findings, judge_binding(ranks));
  }
  append(findings, examine_software(session));
  append(findings, examine_gpu_links(*mesh));
  append(findings, examine_processor());
  const int ranks_here = session.size();
  tell(session, fmt::format("measuring speed of {} rank{}: matrix products, copies, all-reduce "
                            "(about 5 s; longer where "
                            "cores are shared)",
                            ranks_here, plural(ranks_here)));
  append(findings, examine_speed(*mesh));
  tell(session, fmt::format("measuring clocks and write latency of '{}' (about a second)", folder));
  findings.push_back(examine_clocks(mesh->world()));
  findings.push_back(examine_file_system(mesh->world(), folder));
  if (session.rank() == 0) findings.push_back(examine_shared_memory());
  tell(session, "training a tiny model, 20 steps (about a second)");
  try {
    const TinyTraining trained = train_tiny_gpt(*mesh);
    findings.push_back(judge_training(trained.losses, trained.digests, trained.seconds));
  } catch (const CommError& error) {
    if (error.agreed_ranks() != session.size()) throw;
    findings.push_back({Health::error, "training", error.what(), error.hint()});
  }
  int failed = has_error(findings);
  mesh->world().all_reduce(&failed, 1, DType::i32, ReduceOp::max);
  if (session.rank() == 0) print_findings(findings, ranks, json);
  return static_cast<int>(failed ? ExitCode::other : ExitCode::done);
}

}  // namespace

int doctor_command(const Invocation& call) {
  CommandLine app(
      "Checks ranks, hosts, cores, libraries, speed and storage, and trains a tiny model. Under "
      "mpiexec it checks all ranks.",
      "choir doctor");
  std::string folder = "runs";
  bool json = false;
  app.add_option("--folder", folder, "folder for runs, whose storage is checked").shows_default();
  app.add_flag("--json", json, "print one JSON object");
  if (const auto code = parse(app, call)) return *code;
  return with_mpi([&](MpiSession& session) { return examine(session, folder, json); });
}

}  // namespace choir
