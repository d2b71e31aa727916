// choir doctor: the batch system, and the file of jobs/ for it. The same signs as in
// jobs/lib/place.sh.
#include <fmt/format.h>
#include <unistd.h>

#include <cstdlib>
#include <sstream>

#include "choir/app/doctor.hpp"

namespace choir {
namespace {

std::string environment(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr ? value : "";
}

bool on_path(const std::string& program) {
  std::istringstream path(environment("PATH"));
  for (std::string folder; std::getline(path, folder, ':');)
    if (access((folder + "/" + program).c_str(), X_OK) == 0) return true;
  return false;
}

}  // namespace

Finding judge_batch_system(const BatchFacts& facts) {
  const auto fits = [](const std::string& system, const std::string& file,
                       const std::string& submit) {
    return Finding{
        Health::ok, "batch system",
        fmt::format("{}: jobs/{} fits; several jobs, one after the other: jobs/chain.sh -n 8 "
                    "jobs/{} DECK; one now: {} jobs/{}",
                    system, file, file, submit, file),
        ""};
  };
  if (facts.nersc_host == "perlmutter")
    return fits("SLURM on Perlmutter", "perlmutter.slurm", "sbatch");
  if (facts.pbs && facts.host.find("polaris") != std::string::npos)
    return fits("PBS on Polaris", "polaris.pbs", "qsub");
  if (facts.slurm) return fits("SLURM", "generic.slurm", "sbatch");
  if (facts.pbs) return fits("PBS", "generic.pbs", "qsub");
  return {Health::ok, "batch system", "none: jobs/local.sh DECK, or jobs/launch -n RANKS PROGRAM",
          ""};
}

Finding examine_batch_system() {
  BatchFacts facts;
  facts.nersc_host = environment("NERSC_HOST");
  facts.host = environment("PBS_O_HOST") + " " + host_name();
  facts.slurm = !environment("SLURM_JOB_ID").empty() || on_path("sbatch");
  facts.pbs = !environment("PBS_JOBID").empty() || (on_path("qsub") && !facts.slurm);
  return judge_batch_system(facts);
}

}  // namespace choir
