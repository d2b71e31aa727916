/* Plays NVML for the cards of an emulated GPU: every card uses 100 W from the beginning of time.
 * NVML_STATUS makes calls about energy fail with this status. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

int nvmlInit_v2(void) { return 0; }

int nvmlDeviceGetHandleByUUID(const char* uuid, void** card) {
  const char* last = strrchr(uuid, '-');
  if (strncmp(uuid, "GPU-", 4) != 0 || last == NULL) return 6;
  *card = (void*)(uintptr_t)strtoul(last + 1, NULL, 16);
  return *card == NULL ? 6 : 0;
}

int nvmlDeviceGetTotalEnergyConsumption(void* card, unsigned long long* millijoules) {
  const char* status = getenv("NVML_STATUS");
  struct timespec now;
  (void)card;
  if (status != NULL) return atoi(status);
  clock_gettime(CLOCK_MONOTONIC, &now);
  *millijoules = 100000ull * now.tv_sec + now.tv_nsec / 10000;
  return 0;
}

const char* nvmlErrorString(int status) { return status == 3 ? "Not Supported" : "another error"; }
