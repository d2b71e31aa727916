// Tests that each device is read once, however many ranks use it, and that a sum of some devices is
// never taken for the sum of all.
#include "src/run/energy_meter.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "src/device/cpu_device.hpp"
#include "test/support/mpi_test.hpp"

namespace choir {
namespace {

/// Two ranks per simulated host, and a folder with the counter of each host.
class Hosts {
 public:
  Hosts() : mesh_(Mesh::over_world(Layout(1, 1, test::world_size(), 1), Transport::mpi, 2)) {
    long id = ::getpid();
    mesh_->world().broadcast(&id, sizeof id, 0);
    folder_ = std::filesystem::temp_directory_path() /
              ("choir_hosts_" + std::to_string(id) + "_" + std::to_string(mesh_->node_index()));
    if (first()) {
      std::filesystem::create_directories(folder_ / "intel-rapl:0");
      std::ofstream(folder_ / "intel-rapl:0/name") << "package-0";
      std::ofstream(folder_ / "intel-rapl:0/max_energy_range_uj") << 1'000'000'000;
    }
    set(0);
  }
  ~Hosts() {
    mesh_->world().barrier();
    if (first()) std::filesystem::remove_all(folder_);
  }
  bool first() const { return mesh_->node().rank() == 0; }
  Mesh& mesh() const { return *mesh_; }
  /// Sets the counter of every host to this many joules, and one more for each host before it.
  void set(std::int64_t joules) const {
    if (first())
      std::ofstream(folder_ / "intel-rapl:0/energy_uj")
          << (joules == 0 ? 0 : joules + mesh_->node_index()) * 1'000'000;
    mesh_->world().barrier();
  }
  void remove() const {
    if (first()) std::filesystem::remove_all(folder_ / "intel-rapl:0");
    mesh_->world().barrier();
  }
  EnergyMeter meter() const { return {*mesh_, device_, {.powercap = folder_.string()}}; }
  /// The sum over the hosts if each has used this many joules, and one more for each before it.
  double all(std::int64_t joules) const {
    const int hosts = mesh_->nodes();
    return static_cast<double>(joules * hosts + hosts * (hosts - 1) / 2);
  }

 private:
  std::unique_ptr<Mesh> mesh_;
  CpuDevice device_;
  std::filesystem::path folder_;
};

TEST(EnergyMeter, ReadsEachHostOnce) {
  const Hosts hosts;
  EnergyMeter meter = hosts.meter();
  EXPECT_ALL_RANKS(meter.readable());
  if (test::world_rank() == 0) {
    EXPECT_EQ(meter.text(), "package-0 of " + std::to_string(hosts.mesh().nodes()) +
                                (hosts.mesh().nodes() == 1 ? " host (RAPL)" : " hosts (RAPL)"));
  }
  hosts.set(10);
  const EnergyUse use = meter.use();
  EXPECT_ALL_RANKS(use.all == hosts.all(10)) << use.all;
  EXPECT_ALL_RANKS(use.steps == 0) << use.steps;
}

TEST(EnergyMeter, TellsStepsFromOtherWork) {
  const Hosts hosts;
  EnergyMeter meter = hosts.meter();
  hosts.set(10);
  meter.begin_steps();
  hosts.set(30);
  meter.end_steps();
  hosts.set(100);
  meter.begin_steps();
  hosts.set(105);
  const EnergyUse use = meter.use();  // within steps
  EXPECT_ALL_RANKS(use.all == hosts.all(105)) << use.all;
  EXPECT_ALL_RANKS(use.steps == 25 * hosts.mesh().nodes()) << use.steps;
}

TEST(EnergyMeter, OneHostThatCannotBeReadLeavesNoSum) {
  const Hosts hosts;
  if (hosts.mesh().node_index() == hosts.mesh().nodes() - 1)
    hosts.remove();
  else
    hosts.mesh().world().barrier();
  EnergyMeter meter = hosts.meter();
  EXPECT_ALL_RANKS(!meter.readable());
  if (test::world_rank() != 0) return;
  EXPECT_NE(meter.text().find("has no counter of a package (intel-rapl) (host "), std::string::npos)
      << meter.text();
  if (hosts.mesh().nodes() > 1) {
    EXPECT_NE(meter.text().find(std::to_string(hosts.mesh().nodes() - 1) + " of " +
                                std::to_string(hosts.mesh().nodes()) + " hosts can be read"),
              std::string::npos)
        << meter.text();
  }
}

TEST(EnergyMeter, ACounterThatIsLostEndsTheSumOnAllRanks) {
  const Hosts hosts;
  EnergyMeter meter = hosts.meter();
  hosts.set(10);
  meter.use();
  EXPECT_ALL_RANKS(meter.readable());
  if (test::world_rank() == 0) {
    // The file stays open: it is emptied, not removed.
    for (const auto& entry :
         std::filesystem::directory_iterator(std::filesystem::temp_directory_path()))
      if (entry.path().filename().string().starts_with("choir_hosts_" + std::to_string(::getpid())))
        std::ofstream(entry.path() / "intel-rapl:0/energy_uj");
  }
  hosts.mesh().world().barrier();
  meter.use();
  EXPECT_ALL_RANKS(!meter.readable());
}

}  // namespace
}  // namespace choir
