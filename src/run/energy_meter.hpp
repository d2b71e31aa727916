#pragma once
// The energy of the devices on which a run computes, summed over its ranks: cards if the ranks
// compute on cards, else the processors of their hosts. Each device is read by one rank, the first
// on its host, however many ranks use it. Energy is known only if every device can be read: the sum
// of some of them would look like the sum of all.
#include <string>

#include "choir/comm/mesh/mesh.hpp"
#include "src/device/energy.hpp"

namespace choir {

/// "1.23 mJ", "12.3 J", "4.56 kJ" ...
std::string format_energy(double joules);

/// Joules of all devices since the meter was made.
struct EnergyUse {
  double steps = 0;  ///< between begin_steps() and end_steps()
  double all = 0;
};

class EnergyMeter {
 public:
  struct Places {
    std::string powercap = kPowercapFolder;
    const char* nvml = kNvmlLibrary;
  };
  /// Collective over the world of the mesh.
  EnergyMeter(Mesh& mesh, const Device& device, const Places& places);
  EnergyMeter(Mesh& mesh, const Device& device) : EnergyMeter(mesh, device, Places()) {}

  /// The same on every rank.
  bool readable() const { return readable_; }
  /// On rank 0: what is read ("2 cards (NVML)", "package-0, dram of 2 hosts (RAPL)"), or why energy
  /// is not known.
  const std::string& text() const { return text_; }

  /// Local. Energy from the first call on belongs to steps, from the second on to other work.
  void begin_steps() { read(true); }
  void end_steps() { read(false); }
  /// Local. Reads the counter if the last reading is older than a second, because counters of
  /// processors wrap around.
  void keep_up();
  /// Collective over the world. If a device could no longer be read, readable() is false
  /// afterwards.
  EnergyUse use();

 private:
  /// Counts the energy since the last reading; what follows belongs to steps or does not.
  void read(bool steps);

  Communicator& world_;
  EnergySource own_;  ///< of the device that this rank reads
  bool readable_ = false, in_steps_ = false;
  double last_ = 0, read_at_ = 0;
  EnergyUse mine_;
  std::string text_;
};

}  // namespace choir
