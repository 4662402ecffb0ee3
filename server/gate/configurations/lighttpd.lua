-- Tidegate: runs before each request goes to the gate, and before each answer leaves.
local request = lighty.r
local client = request.req_attr

if request.req_env["TIDEGATE"] == nil then
    request.req_env["TIDEGATE"] = "asked"
    -- Who the client is, and its socket: written anew, whatever the client said.
    request.req_header["X-Forwarded-For"] = nil
    request.req_header["X-Forwarded-Proto"] = nil
    request.req_header["Tidegate-Mover"] = table.concat({
        "lighttpd", client["request.protocol"],
        client["request.remote-addr"], client["request.remote-port"],
        client["request.server-addr"], client["request.server-port"], "__quoted__",
    }, " ")
else
    -- The log has the lease, and clients do not see it.
    local answer = request.resp_header
    request.req_env["TIDEGATE_LEASE"] = answer["Tidegate-Lease"]
    answer["Tidegate-Lease"] = nil
    answer["Tidegate-Range"] = nil
    -- The gate is away: clients are asked to come back.
    if answer["Server"] == nil and request.req_item["http_status"] == 503 then
        answer["Retry-After"] = "30"
    end
end
