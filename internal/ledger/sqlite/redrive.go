package sqlite

var qForgetRedriven = define("DELETE FROM swarmlog_redriven WHERE lease_id = ? AND position = ?")
