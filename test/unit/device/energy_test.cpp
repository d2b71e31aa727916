// Tests which counters of a host are read and summed, and what is said where there are none.
#include "src/device/energy.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <fstream>

namespace choir {
namespace {

/// A folder like /sys/class/powercap.
class Powercap : public ::testing::Test {
 protected:
  Powercap()
      : folder_(std::filesystem::temp_directory_path() /
                ("choir_powercap_" + std::to_string(::getpid()))) {
    std::filesystem::create_directories(folder_ / "intel-rapl");  // the control type itself
  }
  ~Powercap() override { std::filesystem::remove_all(folder_); }
  /// Sets the counter of a zone.
  void set(const std::string& zone, std::uint64_t micro_joules) {
    std::ofstream(folder_ / zone / "energy_uj") << micro_joules << '\n';
  }
  void add(const std::string& zone, const std::string& name, std::uint64_t micro_joules = 0,
           std::uint64_t most = 262143328850) {
    std::filesystem::create_directories(folder_ / zone);
    std::ofstream(folder_ / zone / "name") << name << '\n';
    std::ofstream(folder_ / zone / "max_energy_range_uj") << most << '\n';
    set(zone, micro_joules);
  }
  EnergySource open() const { return energy_of_processors(folder_.string()); }

  std::filesystem::path folder_;
};

TEST_F(Powercap, SumsPackagesAndTheirMemoryOnce) {
  // In every zone another number of joules is used: the sum tells which were counted.
  const std::vector<std::pair<std::string, std::string>> zones{
      {"intel-rapl:0", "package-0"},       {"intel-rapl:0:0", "core"},   {"intel-rapl:0:1", "dram"},
      {"intel-rapl:1", "package-1-die-0"}, {"intel-rapl:1:0", "uncore"}, {"intel-rapl:2", "psys"},
      {"intel-rapl-mmio:0", "package-0"},  {"dtpm:0", "package"}};
  for (const auto& [zone, name] : zones) add(zone, name, 7'000'000);
  const EnergySource source = open();
  ASSERT_EQ(source.reason, "");
  EXPECT_EQ(source.parts, "package-0, dram, package-1-die-0");
  EXPECT_EQ(source.counter->joules(), 0) << "what was used before does not count";
  for (std::size_t i = 0; i < zones.size(); ++i)
    set(zones[i].first, 7'000'000 + (std::uint64_t{1} << i) * 1'000'000);
  EXPECT_DOUBLE_EQ(source.counter->joules(), 1 + 4 + 8);
  EXPECT_DOUBLE_EQ(source.counter->joules(), 1 + 4 + 8) << "nothing more was used";
}

TEST_F(Powercap, CountersThatBeginAgainGoOn) {
  add("intel-rapl:0", "package-0", 900'000, 1'000'000);
  const EnergySource source = open();
  set("intel-rapl:0", 100'000);
  EXPECT_NEAR(source.counter->joules(), 0.2, 1e-12);
  set("intel-rapl:0", 50'000);
  EXPECT_NEAR(source.counter->joules(), 1.15, 1e-12);
}

TEST_F(Powercap, ACounterThatFailsLaterIsNotZero) {
  add("intel-rapl:0", "package-0");
  const EnergySource source = open();
  std::ofstream(folder_ / "intel-rapl:0/energy_uj") << "\n";
  EXPECT_TRUE(std::isnan(source.counter->joules()));
  set("intel-rapl:0", 1'000'000);
  EXPECT_TRUE(std::isnan(source.counter->joules())) << "the energy in between is lost";
}

TEST_F(Powercap, SaysWhyThereIsNoCounter) {
  EXPECT_NE(energy_of_processors("/no/such/folder").reason.find("'/no/such/folder': No such file"),
            std::string::npos);
  EXPECT_NE(open().reason.find("has no counter of a package"), std::string::npos);
  add("intel-rapl:0", "psys");
  EXPECT_NE(open().reason.find("has no counter of a package"), std::string::npos);
  add("intel-rapl:0", "package-0", 5, 4);
  EXPECT_NE(open().reason.find("max_energy_range_uj"), std::string::npos);
  // Linux lets only root read the counters, which the tests may be: a missing file fails, too.
  add("intel-rapl:0", "package-0");
  std::filesystem::remove(folder_ / "intel-rapl:0/energy_uj");
  const EnergySource source = open();
  EXPECT_NE(source.reason.find("intel-rapl:0/energy_uj': No such file"), std::string::npos)
      << source.reason;
  EXPECT_EQ(source.counter, nullptr) << "part of the processors is not all of them";
}

TEST(CardEnergy, SaysWhyThereIsNoLibrary) {
  const EnergySource source = energy_of_card("GPU-1", "libno-such-nvml.so.1");
  EXPECT_EQ(source.counter, nullptr);
  EXPECT_NE(source.reason.find("NVML cannot be loaded: libno-such-nvml.so.1"), std::string::npos)
      << source.reason;
}

}  // namespace
}  // namespace choir
