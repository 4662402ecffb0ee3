-- Tidegate: runs before each request goes to the gate, and before each answer leaves.
local request = lighty.r
local client = request.req_attr
-- Files of fewer bytes go without the gate.
local SMALL_BELOW = __below__

if request.req_env["TIDEGATE"] == nil then
    request.req_env["TIDEGATE"] = "asked"
    local path = client["uri.path-raw"]:gsub("%%(%x%x)", function(digits)
        return string.char(tonumber(digits, 16))
    end)
    local file = SMALL_BELOW > 0 and lighty.c.stat("__root__" .. path)
    local is_own = path:find("^/%-/") or path:find("/.", 1, true)
    local is_small = file and file.is_file and file.st_size < SMALL_BELOW and not is_own
    request.req_header["Tidegate-Small"] = is_small and "1" or nil
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
