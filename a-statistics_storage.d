statistics_storage.o: src/parallel/statistics_storage.cpp \
 include/choir/parallel/statistics_storage.hpp \
 include/choir/core/memory_plan.hpp include/choir/device/device.hpp \
 include/choir/nn/parameter_set.hpp include/choir/nn/parameter.hpp \
 include/choir/comm/layout.hpp include/choir/core/tensor.hpp \
 include/choir/core/dtype.hpp include/choir/core/host_device.hpp \
 include/choir/core/error.hpp include/choir/nn/precision.hpp \
 include/choir/nn/running_statistics.hpp \
 include/choir/ops/step_control.hpp include/choir/parallel/sharding.hpp \
 include/choir/comm/mesh.hpp include/choir/comm/communicator.hpp \
 include/choir/core/negative_control.hpp include/choir/nn/shard.hpp \
 include/choir/ops/reduce.hpp include/choir/ops/running_statistics.hpp
include/choir/parallel/statistics_storage.hpp:
include/choir/core/memory_plan.hpp:
include/choir/device/device.hpp:
include/choir/nn/parameter_set.hpp:
include/choir/nn/parameter.hpp:
include/choir/comm/layout.hpp:
include/choir/core/tensor.hpp:
include/choir/core/dtype.hpp:
include/choir/core/host_device.hpp:
include/choir/core/error.hpp:
include/choir/nn/precision.hpp:
include/choir/nn/running_statistics.hpp:
include/choir/ops/step_control.hpp:
include/choir/parallel/sharding.hpp:
include/choir/comm/mesh.hpp:
include/choir/comm/communicator.hpp:
include/choir/core/negative_control.hpp:
include/choir/nn/shard.hpp:
include/choir/ops/reduce.hpp:
include/choir/ops/running_statistics.hpp:
