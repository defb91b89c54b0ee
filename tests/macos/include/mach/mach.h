#pragma once
#include <stdint.h>
typedef int kern_return_t;
typedef unsigned int natural_t, mach_port_t, host_t, task_t, task_name_t, mach_msg_type_number_t;
typedef int integer_t;
typedef integer_t *host_info64_t, *task_info_t;
#define KERN_SUCCESS 0
extern mach_port_t mach_task_self_;
#define mach_task_self() mach_task_self_
mach_port_t mach_host_self(void);
kern_return_t mach_port_deallocate(mach_port_t, mach_port_t);
/* Order and widths as documented; external_page_count and what follows came with macOS 10.9. */
typedef struct {
    natural_t free_count, active_count, inactive_count, wire_count;
    uint64_t zero_fill_count, reactivations, pageins, pageouts, faults, cow_faults, lookups, hits, purges;
    natural_t purgeable_count, speculative_count;
    uint64_t decompressions, compressions, swapins, swapouts;
    natural_t compressor_page_count, throttled_count, external_page_count, internal_page_count;
    uint64_t total_uncompressed_pages_in_compressor;
} vm_statistics64_data_t;
#define HOST_VM_INFO64 4
#define HOST_VM_INFO64_COUNT ((mach_msg_type_number_t)(sizeof(vm_statistics64_data_t) / sizeof(integer_t)))
kern_return_t host_statistics64(host_t, int, host_info64_t, mach_msg_type_number_t *);
typedef struct {
    uint64_t virtual_size;
    integer_t region_count, page_size;
    uint64_t resident_size, resident_size_peak, device, device_peak, internal, internal_peak, external, external_peak, reusable,
        reusable_peak, purgeable_volatile_pmap, purgeable_volatile_resident, purgeable_volatile_virtual, compressed, compressed_peak,
        compressed_lifetime, phys_footprint;
} task_vm_info_data_t; /* there are more behind */
#define TASK_VM_INFO 22
#define TASK_VM_INFO_COUNT ((mach_msg_type_number_t)(sizeof(task_vm_info_data_t) / sizeof(natural_t)))
kern_return_t task_info(task_name_t, unsigned int, task_info_t, mach_msg_type_number_t *);
