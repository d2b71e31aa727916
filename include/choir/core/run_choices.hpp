#pragma once
// Choices of a deck that rooms below the deck carry out, with their words.

#include <cstdint>
#include <string>
#include <string_view>

#include "choir/core/enum_words.hpp"
#include "choir/core/error.hpp"

namespace choir {

/// Element types of a run; choir/nn/parameter_set.hpp has their table.
enum class TrainPrecision : std::uint8_t { fp64, fp32, bf16_mixed, bf16_true, fp16_mixed };
constexpr auto words_of(TrainPrecision) {
  using enum TrainPrecision;
  return words<TrainPrecision>({{fp64, "fp64"},
                                {fp32, "fp32"},
                                {bf16_mixed, "bf16-mixed"},
                                {bf16_true, "bf16-true"},
                                {fp16_mixed, "fp16-mixed"}});
}
/// The precision with this name. Throws DeckError for other names.
inline TrainPrecision precision_named(std::string_view name) {
  if (const auto precision = value_named<TrainPrecision>(name)) return *precision;
  throw DeckError("train.precision: unknown precision '" + std::string(name) + "'",
                  "use fp64, fp32, bf16-mixed, bf16-true or fp16-mixed");
}

/// The device of a run. automatic: cuda if every rank has a GPU and the run is not in fp64.
enum class RequestedDevice : std::uint8_t { automatic, cpu, cuda };
constexpr auto words_of(RequestedDevice) {
  using enum RequestedDevice;
  return words<RequestedDevice>({{automatic, "auto"}, {cpu, "cpu"}, {cuda, "cuda"}});
}

/// Strategies of attention over sequences whose positions are divided among ranks; see
/// context_way_of() in src/nn/axes/context_axis.hpp.
enum class RequestedContextMode : std::uint8_t { automatic, ulysses, gather, ring, ring_ulysses };
constexpr auto words_of(RequestedContextMode) {
  using enum RequestedContextMode;
  return words<RequestedContextMode>({{automatic, "auto"},
                                      {ulysses, "ulysses"},
                                      {gather, "gather"},
                                      {ring, "ring"},
                                      {ring_ulysses, "ring-ulysses"}});
}

/// The ranks that read packed data (tokens, audio); all ranks get the same data.
enum class ReaderKind {
  own,  ///< each rank reads its parts (MPI_File_read_at): for scalable file systems and cached
        ///< files
  collective,  ///< MPI_File_read_at_all: the MPI library aggregates (cb_nodes, cb_buffer_size)
  scatter,     ///< one rank of each group reads and distributes with MPI_Iscatterv: few clients and
               ///< open files
  node,        ///< the ranks of a node fill one shared window and use it in place: no messages
};
constexpr auto words_of(ReaderKind) {
  return words<ReaderKind>({{ReaderKind::own, "own"},
                            {ReaderKind::collective, "collective"},
                            {ReaderKind::scatter, "scatter"},
                            {ReaderKind::node, "node"}});
}

/// The place in which a whole data set stays during a run.
enum class Preload { none, host, device };
constexpr auto words_of(Preload) {
  return words<Preload>(
      {{Preload::none, "none"}, {Preload::host, "host"}, {Preload::device, "device"}});
}

}  // namespace choir
